#include "region.h"

#include <algorithm>

namespace opguard {

namespace {

constexpr size_t MAX_WRITES = 256, MAX_SEEN = 4096, MAX_TAINTED = 64, INDEX_FROM = 16;

template <class Add>
void subtract(int64_t a, int64_t b, int64_t lo, int64_t hi, Add add) {
  if (b <= lo || a >= hi) {
    add(a, b);
    return;
  }
  if (a < std::min(b, lo)) add(a, std::min(b, lo));
  if (std::max(a, hi) < b) add(std::max(a, hi), b);
}

// What a later write of all bytes from lo to hi leaves of the older ones.
void keep_beside(std::vector<Written>& writes, int64_t lo, int64_t hi) {
  bool untouched = true;
  for (const auto& old : writes) untouched = untouched && (old.hi <= lo || old.lo >= hi);
  if (untouched) return;
  std::vector<Written> kept;
  kept.reserve(writes.size() + 1);
  for (auto& old : writes) {
    if (old.hi <= lo || old.lo >= hi) {
      kept.push_back(std::move(old));
    } else if (old.geometry.form == NO_FORM) {
      subtract(old.lo, old.hi, lo, hi, [&](int64_t a, int64_t b) { kept.push_back({a, b, old.events, {}}); });
    } else if (old.lo < lo || old.hi > hi) {
      kept.push_back(std::move(old));
    }
  }
  writes = std::move(kept);
}

void add_distinct(Events& into, const Events& events) {
  for (int32_t event : events)
    if (std::find(into.begin(), into.end(), event) == into.end()) into.push_back(event);
}

// Whether a write and a view whose spans overlap have a byte in common.
bool meet(const Written& old, const Geometry& geometry, bool dense) {
  const bool covered = old.lo <= geometry.lo && geometry.lo < geometry.hi && geometry.hi <= old.hi;
  if (old.geometry.form == NO_FORM && (dense || covered)) return true;
  if (geometry.form < NO_FORM || old.geometry.form < NO_FORM) return true;
  static PyObject* python = py::object(py::module_::import("opguard_ci.capture.region").attr("_meet")).release().ptr();
  py::object geometry_written = old.geometry.form == NO_FORM ? py::object(py::none()) : py::object(tuple_of(old.geometry));
  py::tuple written = py::make_tuple(old.lo, old.hi, py::tuple(py::cast(old.events)), geometry_written);
  return py::cast<bool>(py::handle(python)(written, tuple_of(geometry), dense));
}

}  // namespace

Forms& Forms::all() {
  static Forms* forms = new Forms();  // never freed: the interpreter may be gone by then
  return *forms;
}

int64_t Forms::of(const py::tuple& rest) {
  if (rest.size() > 1 && !PyTuple_Check(rest[1].ptr())) return -2 - (static_cast<int64_t>(py::hash(rest)) & INT64_MAX) / 2;
  if (PyObject* known = PyDict_GetItemWithError(numbers_.ptr(), rest.ptr())) return PyLong_AsLong(known);
  if (PyErr_Occurred()) throw py::error_already_set();
  const auto number = static_cast<int64_t>(rests_.size());
  numbers_[rest] = number;
  rests_.push_back(rest);
  contiguous_.push_back(rest.size() == 1);
  return number;
}

Geometry geometry_of(const py::tuple& geometry) {
  if (geometry.size() == 3 && PyLong_Check(geometry[2].ptr()))
    return {py::cast<int64_t>(geometry[0]), py::cast<int64_t>(geometry[1]), py::cast<int64_t>(geometry[2])};
  auto rest = py::reinterpret_steal<py::tuple>(PyTuple_GetSlice(geometry.ptr(), 2, PyTuple_GET_SIZE(geometry.ptr())));
  return {py::cast<int64_t>(geometry[0]), py::cast<int64_t>(geometry[1]), Forms::all().of(rest)};
}

py::tuple tuple_of(const Geometry& geometry) {
  if (geometry.form < NO_FORM) return py::make_tuple(geometry.lo, geometry.hi, geometry.form);
  const py::tuple& rest = Forms::all().at(geometry.form);
  py::tuple made(2 + rest.size());
  made[0] = geometry.lo;
  made[1] = geometry.hi;
  for (size_t i = 0; i < rest.size(); ++i) made[2 + i] = rest[i];
  return made;
}

const uint64_t* Seen::find(const Geometry& geometry) const {
  if (!index_.empty()) {
    auto found = index_.find(geometry);
    return found == index_.end() ? nullptr : &items_[found->second].second;
  }
  for (const auto& item : items_)
    if (item.first == geometry) return &item.second;
  return nullptr;
}

bool Seen::remember(const Geometry& geometry, uint64_t value) {
  if (const uint64_t* known = find(geometry)) {
    *const_cast<uint64_t*>(known) = value;
    return false;
  }
  const bool full = items_.size() >= MAX_SEEN;
  if (full) {
    items_.erase(items_.begin(), items_.begin() + MAX_SEEN / 2);
    reindex();
  }
  items_.emplace_back(geometry, value);
  if (!index_.empty()) {
    index_[geometry] = items_.size() - 1;
  } else if (items_.size() > INDEX_FROM) {
    reindex();
  }
  return full;
}

void Seen::replace(uint64_t old, uint64_t value) {
  for (auto& item : items_)
    if (item.second == old) item.second = value;
}

void Seen::keep_beside(int64_t lo, int64_t hi) {
  const size_t before = items_.size();
  items_.erase(
      std::remove_if(items_.begin(), items_.end(), [&](const auto& item) { return item.first.hi > lo && item.first.lo < hi; }),
      items_.end());
  if (items_.size() != before) reindex();
}

void Seen::reindex() {
  index_.clear();
  if (items_.size() <= INDEX_FROM) return;
  for (size_t i = 0; i < items_.size(); ++i) index_[items_[i].first] = i;
}

void Region::changed(int64_t lo, int64_t hi) {
  if ((foreign || fresh) && !state) {
    foreign = true;
    keep_beside(writes, lo, hi);
    return;
  }
  tainted.emplace_back(lo, hi);
  if (tainted.size() > MAX_TAINTED) {
    int64_t first = tainted[0].first, last = tainted[0].second;
    for (const auto& [a, b] : tainted) first = std::min(first, a), last = std::max(last, b);
    tainted.assign(1, {first, last});
  }
}

uint64_t Region::assumed(const Geometry& geometry, int64_t version_now) {
  auto pin = std::find_if(pinned.begin(), pinned.end(), [&](const auto& one) { return one.first == geometry; });
  const bool moved = pin != pinned.end() && pin->second != version_now;
  if (pin == pinned.end()) {
    pinned.emplace_back(geometry, version_now);
  } else {
    pin->second = version_now;
  }
  if (moved || !owned || writing || fresh || foreign || !tainted.empty()) return 0;
  const uint64_t* known = seen.find(geometry);
  return known == nullptr ? 0 : *known;
}

void Region::record_write(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, int event) {
  owned = true;
  ++version;
  pinned.clear();
  if (lo <= 0 && hi >= nbytes) {
    seen.clear();
  } else {
    seen.keep_beside(lo, hi);
  }
  if (!dense) {
    writes.erase(
        std::remove_if(writes.begin(), writes.end(), [&](const Written& old) { return old.geometry == geometry; }), writes.end());
    writes.push_back({lo, hi, {event}, geometry});
  } else {
    if (!tainted.empty()) {
      std::vector<std::pair<int64_t, int64_t>> left;
      for (const auto& [a, b] : tainted) subtract(a, b, lo, hi, [&](int64_t x, int64_t y) { left.emplace_back(x, y); });
      tainted = std::move(left);
    }
    if (writes.empty() || (lo <= 0 && hi >= nbytes)) {
      writes.clear();
      writes.push_back({lo, hi, {event}, {}});
      return;
    }
    keep_beside(writes, lo, hi);
    writes.push_back({lo, hi, {event}, {}});
  }
  if (writes.size() > MAX_WRITES) merge();
}

void Region::merge() {
  const size_t half = writes.size() / 2;
  Written joined{writes[0].lo, writes[0].hi, {}, {}};
  for (size_t i = 0; i < half; ++i) {
    joined.lo = std::min(joined.lo, writes[i].lo);
    joined.hi = std::max(joined.hi, writes[i].hi);
    add_distinct(joined.events, writes[i].events);
  }
  writes.erase(writes.begin() + 1, writes.begin() + static_cast<int64_t>(half));
  writes[0] = std::move(joined);
}

void Region::writers(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, Events& into) const {
  std::vector<const Events*> found;
  const std::vector<Written> held = writes;  // asking Python may run a finalizer, whose operators write
  for (auto old = held.rbegin(); old != held.rend(); ++old) {
    if (old->lo >= hi || lo >= old->hi || !meet(*old, geometry, dense)) continue;
    found.push_back(&old->events);
    if (old->geometry.form == NO_FORM) {
      if (old->lo <= lo && hi <= old->hi) break;
    } else if (!dense && old->geometry == geometry) {
      break;
    }
  }
  for (auto events = found.rbegin(); events != found.rend(); ++events) add_distinct(into, **events);
}

bool Region::is_tainted(int64_t lo, int64_t hi) const {
  return std::any_of(tainted.begin(), tainted.end(), [&](const auto& span) { return span.first < hi && lo < span.second; });
}

int Region::read(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value, Events& found) {
  const uint64_t* before = seen.find(geometry);
  if (before == nullptr) {
    remember(geometry, value);
  } else if (*before != value) {
    if (owned && !writing) changed(lo, hi);
    remember(geometry, value);
  }
  int flags = state ? STATE : 0;
  if (writes.empty()) return flags | OUTSIDE;
  const Written& only = writes[0];
  if (writes.size() == 1 && only.geometry.form == NO_FORM && only.lo <= lo && lo < hi && hi <= only.hi) {
    found = only.events;
  } else {
    writers(geometry, lo, hi, dense, found);
  }
  if (found.empty()) return flags | OUTSIDE;
  return !tainted.empty() && is_tainted(lo, hi) ? flags | OVER : flags;
}

void Region::write(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value, int event) {
  if (dense && lo == 0 && hi == nbytes) {
    owned = true;
    ++version;
    pinned.clear();
    tainted.clear();
    if (writes.size() == 1 && writes[0].geometry.form == NO_FORM) {  // what every new tensor has again and again
      writes[0].lo = lo, writes[0].hi = hi;
      writes[0].events.assign(1, event);
    } else {
      writes.clear();
      writes.push_back({lo, hi, {event}, {}});
    }
    seen.clear();
  } else {
    record_write(geometry, lo, hi, dense, event);
  }
  if (value) remember(geometry, value);
  fresh = false;
}

void Region::allocate(const Geometry& geometry, int64_t lo, int64_t hi, bool dense, uint64_t garbage, int event) {
  fresh = !owned;
  record_write(geometry, lo, hi, dense, event);
  if (garbage) remember(geometry, garbage);
}

void bind_region(py::module_& module) {
  py::class_<Region, RegionPtr>(module, "Region")
      .def(
          py::init([](int64_t pointer, int64_t nbytes, bool foreign) { return std::make_shared<Region>(pointer, nbytes, foreign); }),
          py::arg("pointer") = 0, py::arg("nbytes") = 0, py::kw_only(), py::arg("foreign") = false)
      .def_readwrite("pointer", &Region::pointer)
      .def_readwrite("nbytes", &Region::nbytes)
      .def_readwrite("foreign", &Region::foreign)
      .def_readwrite("fresh", &Region::fresh)
      .def_readwrite("owned", &Region::owned)
      .def_readwrite("state", &Region::state)
      .def_readwrite("version", &Region::version)
      .def_readwrite("writing", &Region::writing)
      .def_readwrite("ahead", &Region::ahead)
      .def("forget", [](Region& region, int64_t lo, int64_t hi) { region.seen.keep_beside(lo, hi); })
      .def_property_readonly("identity", [](const Region& region) { return reinterpret_cast<uintptr_t>(&region); })
      .def("seen_as", [](const Region& region, const py::tuple& geometry) {
        const uint64_t* known = region.seen.find(geometry_of(geometry));
        return known == nullptr ? 0 : *known;
      })
      .def_property_readonly("tainted", [](const Region& region) { return region.tainted; })
      .def_property_readonly(
          "writes",
          [](const Region& region) {
            py::list found;
            for (const auto& one : region.writes) {
              py::object geometry = one.geometry.form == NO_FORM ? py::object(py::none()) : py::object(tuple_of(one.geometry));
              found.append(py::make_tuple(one.lo, one.hi, py::tuple(py::cast(one.events)), geometry));
            }
            return found;
          })
      .def_property_readonly(
          "seen",
          [](const Region& region) {
            py::dict found;
            for (const auto& [geometry, value] : region.seen.items()) found[tuple_of(geometry)] = value;
            return found;
          })
      .def("remember", [](Region& region, const py::tuple& geometry, uint64_t value) { region.remember(geometry_of(geometry), value); })
      .def("assumed", [](Region& region, const py::tuple& geometry, int64_t version) { return region.assumed(geometry_of(geometry), version); })
      .def("changed", &Region::changed)
      .def(
          "record_write",
          [](Region& region, const py::tuple& geometry, int64_t lo, int64_t hi, bool dense, int event) {
            region.record_write(geometry_of(geometry), lo, hi, dense, event);
          })
      .def(
          "writers",
          [](const Region& region, const py::tuple& geometry, int64_t lo, int64_t hi, bool dense) {
            Events found;
            region.writers(geometry_of(geometry), lo, hi, dense, found);
            return py::tuple(py::cast(found));
          })
      .def("is_tainted", &Region::is_tainted)
      .def(
          "read",
          [](Region& region, const py::tuple& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value) {
            Events found;
            const int flags = region.read(geometry_of(geometry), lo, hi, dense, value, found);
            return py::make_tuple(py::tuple(py::cast(found)), flags);
          })
      .def(
          "write",
          [](Region& region, const py::tuple& geometry, int64_t lo, int64_t hi, bool dense, uint64_t value, int event) {
            region.write(geometry_of(geometry), lo, hi, dense, value, event);
          })
      .def(
          "allocate", [](Region& region, const py::tuple& geometry, int64_t lo, int64_t hi, bool dense, uint64_t garbage, int event) {
            region.allocate(geometry_of(geometry), lo, hi, dense, garbage, event);
          });
}

}  // namespace opguard
