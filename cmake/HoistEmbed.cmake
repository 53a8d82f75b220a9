# The bytes of IN, as what stands between the braces of a C array, into OUT:
# cmake -DIN=file -DOUT=file.inc -P HoistEmbed.cmake
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)"
  "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "${bytes}\n")
