#include "client/ctl/text.h"

#include <sstream>

#include "client/ctl/picture.h"
#include "client/ctl/table.h"
#include "gtest/gtest.h"

namespace hoist::ctl::text_test {

TEST(HumanBytes, PicksTheUnitThatReadsBest) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(HumanBytes(~uint64_t{0}), "16384.0 PiB");
}

TEST(HumanTime, HasTwoUnitsAtMost) {
  EXPECT_EQ(HumanTime(999), "999 ms");
  EXPECT_EQ(HumanTime(59'999), "59 s");
  EXPECT_EQ(HumanTime(185'000), "3 min 5 s");
  EXPECT_EQ(HumanTime(7'800'000), "2 h 10 min");
  EXPECT_EQ(HumanTime(273'600'000), "3 d 4 h");
}

TEST(Shown, CannotSteerTheTerminal) {
  EXPECT_EQ(Shown("plain \xc3\xa4\xf0\x9f\x98\x80"),
            "plain \xc3\xa4\xf0\x9f\x98\x80");
  EXPECT_EQ(Shown("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(Shown("\xc2\x9b"
                  "1m"),
            "\\xc2\\x9b1m");  // CSI in one character.
  EXPECT_EQ(Shown("\xff\xc3"), "\\xff\\xc3");
}

TEST(Shown, CannotRearrangeALine) {
  // The direction of writing, joiners, tags, private use; and "/" in too many
  // bytes.
  EXPECT_EQ(Shown("a\u202Egnp.exe"), "a\\xe2\\x80\\xaegnp.exe");
  EXPECT_EQ(Shown("\u2066\u200D\uFEFF\u2028"),
            "\\xe2\\x81\\xa6\\xe2\\x80\\x8d\\xef\\xbb\\xbf\\xe2\\x80\\xa8");
  EXPECT_EQ(Shown("\U000E0041\uE000"), "\\xf3\\xa0\\x81\\x81\\xee\\x80\\x80");
  EXPECT_EQ(Shown("\xc0\xaf\xed\xa0\x80"), "\\xc0\\xaf\\xed\\xa0\\x80");
  EXPECT_EQ(Shown("\u00e4\u05d0\u4e2d\U0001F600"),
            "\u00e4\u05d0\u4e2d\U0001F600");
}

TEST(Counters, ThoseAboveZeroAreNamedByTheirFields) {
  v1::Counters counters;
  counters.set_file_read_bytes(96 << 20);
  counters.set_stages(3);
  counters.set_lent_bytes_to_needs(1024);
  counters.set_longest_event_us(7900);
  std::ostringstream out;
  PrintCounters(counters, "/s", out);
  EXPECT_EQ(out.str(),
            "counters: file read 96.0 MiB/s, stages 3/s, lent to needs "
            "1.0 KiB/s, longest event 7 ms/s\n");
  out.str("");
  PrintCounters({}, "", out);
  EXPECT_EQ(out.str(), "");
}

TEST(Table, AlignsByCharactersAndTrimsLines) {
  Table table({"NAME", ">SIZE", "REST"});
  table.Add({"\xc3\xa4", "1 B", ""});
  table.Add({"abcdef", "10.0 KiB", "x"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(),
            "NAME        SIZE  REST\n"
            "\xc3\xa4            1 B\n"
            "abcdef  10.0 KiB  x\n");
}

}  // namespace hoist::ctl::text_test
