// What is compiled once per instruction set, and chosen when the module is loaded.
#pragma once

#define OPGUARD_JOIN_(a, b) a##b
#define OPGUARD_JOIN(a, b) OPGUARD_JOIN_(a, b)

#if defined(__x86_64__)
#define OPGUARD_PER_ISA(Type, name) extern const Type name##_baseline, name##_avx2, name##_avx512;
#define OPGUARD_FASTEST(name) ::opguard::fastest(name##_baseline, name##_avx2, name##_avx512)
#else
#define OPGUARD_PER_ISA(Type, name) extern const Type name##_baseline;
#define OPGUARD_FASTEST(name) name##_baseline
#endif

namespace opguard {

#if defined(__x86_64__)
// The one for this processor.
template <class T>
const T& fastest(const T& baseline, const T& avx2, const T& avx512) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return avx512;
  return __builtin_cpu_supports("avx2") ? avx2 : baseline;
}
#endif

}  // namespace opguard
