// XXH3 of one instruction set: compiled several times, and chosen when the module is loaded.
#define XXH_INLINE_ALL
#include "xxhash.h"

#include "xxh3.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

namespace opguard {

extern const Xxh3 JOIN(xxh3_, OPGUARD_ISA);

const Xxh3 JOIN(xxh3_, OPGUARD_ISA) = {
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
};

}  // namespace opguard
