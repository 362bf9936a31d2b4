// XXH3 of one instruction set.
#define XXH_INLINE_ALL
#include "xxhash.h"

#include "xxh3.h"

#include <algorithm>

namespace opguard {

namespace {

constexpr size_t SECRET = XXH_SECRET_DEFAULT_SIZE, BLOCK = (SECRET - STRIPE) / XXH_SECRET_CONSUME_RATE;

// Long inputs: stripes are added up, and the sums scrambled after each block of them. at: stripes of this block so far.
template <class Prefetch>
XXH_FORCE_INLINE void add_stripes(xxh_u64* sums, size_t& at, const char* data, size_t num, const Prefetch& prefetch) {
  while (num) {
    const size_t some = std::min(num, BLOCK - at);
    for (size_t i = 0; i < some; ++i, data += STRIPE) {
      prefetch(data);
      XXH3_accumulate_512(sums, data, XXH3_kSecret + (at + i) * XXH_SECRET_CONSUME_RATE);
    }
    num -= some;
    at += some;
    if (at < BLOCK) continue;
    XXH3_scrambleAcc(sums, XXH3_kSecret + SECRET - STRIPE);
    at = 0;
  }
}

// The last stripe is added otherwise.
uint64_t finish(xxh_u64* sums, const char* last, size_t nbytes) {
  XXH3_accumulate_512(sums, last, XXH3_kSecret + SECRET - STRIPE - XXH_SECRET_LASTACC_START);
  return XXH3_mergeAccs(sums, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, nbytes * XXH_PRIME64_1);
}

// What is not in the cache comes up to half as fast again if it is on its way to the second level long before: the first
// level can wait for few lines at a time, and the processor's own prefetchers end with a page.
constexpr size_t NEAR = 512, FAR = 8192, LONG = size_t(1) << 16;

uint64_t digest_long(const char* data, size_t size) {
  alignas(64) xxh_u64 sums[8] = XXH3_INIT_ACC;
  size_t at = 0;
  add_stripes(sums, at, data, (size - 1) / STRIPE, [](const char* stripe) {
    __builtin_prefetch(stripe + NEAR, 0, 3);
    __builtin_prefetch(stripe + FAR, 0, 2);
  });
  return finish(sums, data + size - STRIPE, size);
}

class Rows {
 public:
  Rows(size_t row, size_t nbytes) : per_row_(row / STRIPE), left_(nbytes / STRIPE - 1), nbytes_(nbytes) {}

  void add(const char* first, const Steps* axes, size_t count) {
    for (int64_t i = 0; i < axes->length; ++i, first += axes->stride) {
      if (count > 1) {
        add(first, axes + 1, count - 1);
      } else {
        add_row(first, per_row_ <= SHORT ? AHEAD * axes->stride : static_cast<int64_t>(NEAR));
      }
    }
  }

  uint64_t digest() { return finish(sums_, last_, nbytes_); }

 private:
  // What is asked for before it is needed: rows, and of rows that are longer than SHORT stripes, stripes.
  static constexpr int64_t AHEAD = 4;
  static constexpr size_t SHORT = 32;

  void add_row(const char* row, int64_t ahead) {
    last_ = row + (per_row_ - 1) * STRIPE;
    const size_t num = std::min(per_row_, left_);
    left_ -= num;
    add_stripes(sums_, at_, row, num, [ahead](const char* stripe) { __builtin_prefetch(stripe + ahead); });
  }

  alignas(64) xxh_u64 sums_[8] = XXH3_INIT_ACC;
  size_t per_row_, left_, nbytes_, at_ = 0;
  const char* last_ = nullptr;
};

uint64_t digest_rows(const char* first, const Steps* axes, size_t count, size_t row) {
  size_t nbytes = row;
  for (size_t i = 0; i < count; ++i) nbytes *= static_cast<size_t>(axes[i].length);
  Rows rows(row, nbytes);
  rows.add(first, axes, count);
  return rows.digest();
}

}  // namespace

extern const Xxh3 OPGUARD_JOIN(xxh3_, OPGUARD_ISA);

const Xxh3 OPGUARD_JOIN(xxh3_, OPGUARD_ISA) = {
    [](const void* data, size_t size) -> uint64_t {
      return size < LONG ? XXH3_64bits(data, size) : digest_long(static_cast<const char*>(data), size);
    },
    []() -> void* {
      auto* state = XXH3_createState();
      XXH3_64bits_reset(state);
      return state;
    },
    [](void* state, const void* data, size_t size) { XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size); },
    [](void* state) -> uint64_t {
      auto* held = static_cast<XXH3_state_t*>(state);
      const uint64_t digest = XXH3_64bits_digest(held);
      XXH3_freeState(held);
      return digest;
    },
    digest_rows,
};

}  // namespace opguard
