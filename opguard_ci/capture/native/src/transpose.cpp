// Transposing of one instruction set.
#include "transpose.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace opguard {

namespace {

#if defined(__AVX512F__)

struct Words {
  static __m512 halves(__m512 a, __m512 b, bool high) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
  }

  // Pairs of rows, of pairs, of lanes, of pairs of lanes.
  static void run(const uint32_t* source, uint32_t* target, int64_t source_stride, int64_t target_stride) {
    __m512 a[BLOCK], b[BLOCK];
    for (int i = 0; i < BLOCK; ++i) a[i] = _mm512_loadu_ps(source + i * source_stride);
    for (int i = 0; i < BLOCK; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < BLOCK; i += 4)
      for (int k = 0; k < 4; ++k) a[i + k] = halves(b[i + k / 2], b[i + 2 + k / 2], k % 2);
    for (int i = 0; i < BLOCK; i += 8)
      for (int k = 0; k < 4; ++k) {
        b[i + k] = _mm512_shuffle_f32x4(a[i + k], a[i + 4 + k], 0x88);
        b[i + 4 + k] = _mm512_shuffle_f32x4(a[i + k], a[i + 4 + k], 0xdd);
      }
    for (int i = 0; i < 8; ++i) {
      _mm512_storeu_ps(target + i * target_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
      _mm512_storeu_ps(target + (i + 8) * target_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
    }
  }
};

#elif defined(__AVX2__)

struct Words {
  static constexpr int64_t PART = BLOCK / 2;

  static void run_part(const float* source, float* target, int64_t source_stride, int64_t target_stride) {
    __m256 a[PART], b[PART];
    for (int i = 0; i < PART; ++i) a[i] = _mm256_loadu_ps(source + i * source_stride);
    for (int i = 0; i < PART; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < PART; i += 4)
      for (int k = 0; k < 4; k += 2) {
        a[i + k] = _mm256_shuffle_ps(b[i + k / 2], b[i + 2 + k / 2], 0x44);
        a[i + k + 1] = _mm256_shuffle_ps(b[i + k / 2], b[i + 2 + k / 2], 0xee);
      }
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(target + i * target_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
      _mm256_storeu_ps(target + (i + 4) * target_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
  }

  static void run(const uint32_t* source, uint32_t* target, int64_t source_stride, int64_t target_stride) {
    const auto* from = reinterpret_cast<const float*>(source);
    auto* to = reinterpret_cast<float*>(target);
    for (int64_t i = 0; i < BLOCK; i += PART)
      for (int64_t j = 0; j < BLOCK; j += PART)
        run_part(from + i + j * source_stride, to + i * target_stride + j, source_stride, target_stride);
  }
};

#else

struct Words : TransposeBlock<uint32_t> {};

#endif

}  // namespace

extern const Transpose OPGUARD_JOIN(transpose_, OPGUARD_ISA);

const Transpose OPGUARD_JOIN(transpose_, OPGUARD_ISA) = {transpose<uint32_t, Words>};

}  // namespace opguard
