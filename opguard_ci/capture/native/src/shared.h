// What stands for the same thing in Python, and how its objects are asked.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>

namespace opguard {

inline constexpr int OP = 0, VIEW = 1, COPY = 2, ALLOC = 3, CONTRACT = 4;              // KINDS
inline constexpr int SETUP = 0, DATA = 1, FORWARD = 2, BACKWARD = 3, OPTIMIZER = 4;    // PHASES
inline constexpr int RECOMPUTED = 1;                                                   // a flag of an event
inline constexpr uint8_t WRITTEN = 1, OVERWRITTEN = 2, SCRATCH = 3;                    // how a call treats an argument
inline constexpr int SHOWN = 0, ALLOCATED = 1, CHANGED = 2;                            // what it did to memory
inline constexpr int64_t ALWAYS_CHECKED = 1 << 15, MAX_GARBAGE = 1 << 20;
inline constexpr size_t MAX_EXPANSION = size_t(1) << 28, MAX_FRAMES = 24, MAX_TEXTS = 4096, KEEP = 400000;
inline constexpr int FIRST_CALLS = 4;
inline constexpr int64_t LINKED = -(int64_t(1) << 62);  // of looks by links where those are worked out late
inline constexpr size_t WORKS = 512;                    // that Python sees as one
inline constexpr int LAST_FRAME = 2;  // all below it are ours

inline PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

inline PyObject* item(const py::dict& dict, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), name);
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  return found;
}

inline bool is_true(PyObject* object) { return object != nullptr && PyObject_IsTrue(object) == 1; }

// The session's lock, taken by its own methods, so that Python's path and this one exclude each other.
class Locked {
 public:
  Locked(const py::object& acquire, const py::object& release) : release_(release) {
    const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(acquire.ptr()));
    if (!done) throw py::error_already_set();
  }
  ~Locked() {
    PyObject* done = PyObject_CallNoArgs(release_.ptr());
    if (done == nullptr) PyErr_WriteUnraisable(release_.ptr());
    Py_XDECREF(done);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const py::object& release_;
};

}  // namespace opguard
