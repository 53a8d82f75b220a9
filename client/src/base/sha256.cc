#include "client/src/base/sha256.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace hoist {
namespace {

alignas(16) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t BigEndian(const std::byte* at) {
  return std::to_integer<uint32_t>(at[0]) << 24 |
         std::to_integer<uint32_t>(at[1]) << 16 |
         std::to_integer<uint32_t>(at[2]) << 8 |
         std::to_integer<uint32_t>(at[3]);
}

void MixPlain(std::array<uint32_t, 8>& state, const std::byte* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = BigEndian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] +
           (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t one =
        h + kRounds[i] + w[i] + ((e & f) ^ (~e & g)) +
        (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25));
    const uint32_t two =
        ((a & b) ^ (a & c) ^ (b & c)) +
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < mixed.size(); ++i) state[i] += mixed[i];
}

#if defined(__x86_64__)
// With the processor's instructions, which take the state as ABEF and CDGH.
__attribute__((target("sha,sse4.1"))) void MixNi(std::array<uint32_t, 8>& state,
                                                 const std::byte* blocks,
                                                 size_t count) {
  const __m128i big_endian =
      _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* const words = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xb1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks) + i),
          big_endian);
    }
    for (int i = 0; i < 16; ++i) {  // Four rounds each.
      const __m128i last = w[(i + 3) % 4];
      __m128i& now = w[i % 4];
      __m128i mixed = _mm_add_epi32(
          now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, mixed);
      mixed = _mm_shuffle_epi32(mixed, 0x0e);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, mixed);
      now = _mm_sha256msg2_epu32(
          _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]),
                        _mm_alignr_epi8(last, w[(i + 2) % 4], 4)),
          last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

bool Sha256::HasInstructions() {
#if defined(__x86_64__)
  static const bool has = [] {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
    if ((c & bit_SSE4_1) == 0) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
  }();
  return has;
#else
  return false;
#endif
}

void Sha256::Mix(std::span<const std::byte> blocks) {
#if defined(__x86_64__)
  if (instructions_) {
    return MixNi(state_, blocks.data(), blocks.size() / kBlock);
  }
#endif
  for (; !blocks.empty(); blocks = blocks.subspan(kBlock)) {
    MixPlain(state_, blocks.data());
  }
}

Sha256& Sha256::Bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t at = bytes_ % kBlock;
    size_t step = std::min(kBlock - at, bytes.size());
    if (step == kBlock) {
      step = bytes.size() / kBlock * kBlock;
      Mix(bytes.first(step));
    } else {
      std::copy_n(bytes.begin(), step, rest_.begin() + at);
      if (at + step == kBlock) Mix(rest_);
    }
    bytes_ += step;
    bytes = bytes.subspan(step);
  }
  return *this;
}

Sha256& Sha256::Number(uint64_t number) {
  static_assert(std::endian::native == std::endian::little);
  return Bytes(std::as_bytes(std::span(&number, 1)));
}

Sha256& Sha256::String(std::string_view text) {
  Number(text.size());
  return Bytes(std::as_bytes(std::span(text)));
}

Sha256Digest Sha256::Finish() {
  const uint64_t bits = 8 * bytes_;
  std::array<std::byte, kBlock + 8> end = {std::byte{0x80}};
  // One bit, and zeros, up to the length in the last 8 bytes of a block.
  const size_t zeros = (2 * kBlock - 9 - bytes_ % kBlock) % kBlock;
  for (size_t i = 0; i < 8; ++i) {
    end[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  }
  Bytes(std::span(end).first(1 + zeros + 8));
  Sha256Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

}  // namespace hoist
