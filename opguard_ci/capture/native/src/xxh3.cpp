// XXH3 of one instruction set.
#define XXH_INLINE_ALL
#include "xxhash.h"

#include "xxh3.h"

#include <algorithm>

namespace opguard {

namespace {

// Long inputs: stripes are added up, and the sums scrambled after each block of them; the last stripe is added otherwise.
class Rows {
 public:
  Rows(size_t row, size_t nbytes) : per_row_(row / STRIPE), left_(nbytes / STRIPE - 1), nbytes_(nbytes) {}

  void add(const char* first, const Steps* axes, size_t count) {
    for (int64_t i = 0; i < axes->length; ++i, first += axes->stride) {
      if (count > 1) {
        add(first, axes + 1, count - 1);
      } else {
        add_row(first, per_row_ <= SHORT ? AHEAD * axes->stride : STRIPES_AHEAD * STRIPE);
      }
    }
  }

  uint64_t finish() {
    XXH3_accumulate_512(sums_, last_, XXH3_kSecret + SECRET - STRIPE - XXH_SECRET_LASTACC_START);
    return XXH3_mergeAccs(sums_, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, nbytes_ * XXH_PRIME64_1);
  }

 private:
  static constexpr size_t SECRET = XXH_SECRET_DEFAULT_SIZE, BLOCK = (SECRET - STRIPE) / XXH_SECRET_CONSUME_RATE;
  // What is asked for before it is needed: rows, and of rows that are longer than SHORT stripes, stripes.
  static constexpr int64_t AHEAD = 4, STRIPES_AHEAD = 8;
  static constexpr size_t SHORT = 32;

  void add_row(const char* row, int64_t ahead) {
    last_ = row + (per_row_ - 1) * STRIPE;
    size_t num = std::min(per_row_, left_);
    left_ -= num;
    while (num) {
      const size_t some = std::min(num, BLOCK - at_);
      for (size_t i = 0; i < some; ++i, row += STRIPE) {
        __builtin_prefetch(row + ahead);
        XXH3_accumulate_512(sums_, row, XXH3_kSecret + (at_ + i) * XXH_SECRET_CONSUME_RATE);
      }
      num -= some;
      at_ += some;
      if (at_ < BLOCK) continue;
      XXH3_scrambleAcc(sums_, XXH3_kSecret + SECRET - STRIPE);
      at_ = 0;
    }
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
  return rows.finish();
}

}  // namespace

extern const Xxh3 OPGUARD_JOIN(xxh3_, OPGUARD_ISA);

const Xxh3 OPGUARD_JOIN(xxh3_, OPGUARD_ISA) = {
    [](const void* data, size_t size) -> uint64_t { return XXH3_64bits(data, size); },
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
