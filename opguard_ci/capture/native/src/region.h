// The memory of one storage: what region.py says, compiled.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace opguard {

namespace py = pybind11;

// Flags of a read, as in trace/model.py.
constexpr int OVER = 1, OUTSIDE = 2, STATE = 4, STRIDED = 8, UNREAD = 16, ASSUMED = 32;

// What follows the span in a geometry, (dtype, ...), by number; numbers are those of this process. The GIL guards it.
class Forms {
 public:
  int64_t of(const py::tuple& rest);
  const py::tuple& at(int64_t form) const { return rests_[static_cast<size_t>(form)]; }
  bool is_contiguous(int64_t form) const { return form >= 0 && contiguous_[static_cast<size_t>(form)]; }
  static Forms& all();

 private:
  py::dict numbers_;
  std::vector<py::tuple> rests_;
  std::vector<char> contiguous_;
};

// Of sparse tensors, which have another form whenever their indices are written, there is no table: all numbers below
// this one are hashes.
constexpr int64_t NO_FORM = -1;

struct Geometry {
  int64_t lo = 0, hi = 0;
  int64_t form = NO_FORM;
  bool operator==(const Geometry& other) const { return lo == other.lo && hi == other.hi && form == other.form; }
};

Geometry geometry_of(const py::tuple& geometry);
py::tuple tuple_of(const Geometry& geometry);

struct GeometryHash {
  size_t operator()(const Geometry& g) const {
    return (static_cast<size_t>(g.lo) * 0x9E3779B97F4A7C15u) ^ (static_cast<size_t>(g.hi) * 0xC2B2AE3D27D4EB4Fu) ^
        static_cast<size_t>(g.form);
  }
};

// Values by view, oldest first; an index as soon as there are many.
class Seen {
 public:
  const uint64_t* find(const Geometry& geometry) const;
  bool remember(const Geometry& geometry, uint64_t value);  // true if older ones were forgotten for it
  void replace(uint64_t old, uint64_t value);
  void clear() {
    items_.clear();
    index_.clear();
  }
  void keep_beside(int64_t lo, int64_t hi);  // forget views that share bytes with this span
  const std::vector<std::pair<Geometry, uint64_t>>& items() const { return items_; }

 private:
  void reindex();
  std::vector<std::pair<Geometry, uint64_t>> items_;
  std::unordered_map<Geometry, size_t, GeometryHash> index_;
};

using Events = std::vector<int32_t>;

struct Written {
  int64_t lo, hi;
  Events events;
  Geometry geometry;  // NO_FORM: all bytes of the span
};

class Region {
 public:
  Region(int64_t pointer, int64_t nbytes, bool foreign) : pointer(pointer), nbytes(nbytes), foreign(foreign) {}

  void remember(const Geometry& geometry, uint64_t value) {
    if (seen.remember(geometry, value)) pinned.clear();
  }
  uint64_t assumed(const Geometry& geometry, int64_t version);
  void changed(int64_t lo, int64_t hi);
  void record_write(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, int event);
  void writers(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, Events& into) const;
  bool is_tainted(int64_t lo, int64_t hi) const;

  int read(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value, Events& writers_found);
  void write(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value, int event);
  void allocate(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t garbage, int event);

  int64_t pointer, nbytes;
  bool foreign;
  bool fresh = false, owned = false, state = false;
  int64_t version = 0, writing = 0;
  std::vector<Written> writes;
  Seen seen;
  std::vector<std::pair<Geometry, int64_t>> pinned;  // torch's version counter when views were seen (level op)
  std::vector<std::pair<int64_t, int64_t>> tainted;
  std::shared_ptr<Region> ahead;  // see ahead.py
  uint64_t last_reading = 0;      // of these bytes by another thread, see aside.h

 private:
  void merge();
};

using RegionPtr = std::shared_ptr<Region>;

void bind_region(py::module_& module);

}  // namespace opguard
