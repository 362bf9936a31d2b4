// What the links will know while values of a device are on their way: what ahead.py says, compiled.
#pragma once

#include "region.h"

namespace opguard {

// The region that is ahead of this one.
inline Region& ahead_of(Region& region) {
  if (!region.ahead) {
    region.ahead = std::make_shared<Region>(region.pointer, region.nbytes, false);
    region.ahead->owned = region.owned;
    region.ahead->fresh = region.fresh;
  }
  return *region.ahead;
}

// Whether the links will know the value of a view.
inline bool will_be_known(Region& region, const Geometry& geometry, int64_t version) {
  Region& ahead = ahead_of(region);
  ahead.owned = ahead.owned || region.owned;
  const uint64_t known = ahead.assumed(geometry, version);
  return known && !region.foreign && region.tainted.empty();
}

}  // namespace opguard
