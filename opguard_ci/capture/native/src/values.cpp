#include "values.h"

#include <Python.h>

#include <algorithm>
#include <cstring>

#include "transpose.h"

namespace opguard {

namespace {

constexpr size_t CHUNK = Values::CHUNK;
constexpr int64_t TILE = 32;

// Lets other threads of Python run while many bytes are read.
class WithoutGil {
 public:
  explicit WithoutGil(size_t nbytes) : saved_(nbytes >= LARGE ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* saved_;
};

struct Axis {
  int64_t length, source, target;  // strides in elements
};
using Axes = c10::SmallVector<Axis, 8>;

struct Wide {
  uint64_t low, high;
};

// Rows i0 to i1 of columns j0 to j1.
template <class T>
void copy_part(const T* source, T* target, const Axis& down, const Axis& across, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  for (int64_t j = j0; j < j1; ++j)
    for (int64_t i = i0; i < i1; ++i) target[i * down.target + j * across.target] = source[i * down.source + j * across.source];
}

template <class T>
void copy_plane(const T* source, T* target, const Axis& down, const Axis& across) {
  if (down.source == 1 && across.target == 1) {
    const int64_t rows = down.length / BLOCK * BLOCK, columns = across.length / BLOCK * BLOCK;
    if constexpr (sizeof(T) == sizeof(uint32_t)) {
      transposing().words(source, target, rows, columns, across.source, down.target);
    } else {
      transpose(source, target, rows, columns, across.source, down.target);
    }
    copy_part(source, target, down, across, rows, down.length, 0, across.length);
    copy_part(source, target, down, across, 0, rows, columns, across.length);
    return;
  }
  for (int64_t i = 0; i < down.length; i += TILE)
    for (int64_t j = 0; j < across.length; j += TILE)
      copy_part(source, target, down, across, i, std::min(i + TILE, down.length), j, std::min(j + TILE, across.length));
}

// axes: outermost first; the last two are copied as a plane.
template <class T>
void copy_axes(const T* source, T* target, const Axis* axes, size_t count) {
  if (count > 2) {
    for (int64_t i = 0; i < axes[0].length; ++i)
      copy_axes(source + i * axes[0].source, target + i * axes[0].target, axes + 1, count - 1);
    return;
  }
  const Axis& across = axes[1];
  if (across.source == 1 && across.target == 1) {
    for (int64_t i = 0; i < axes[0].length; ++i)
      std::memcpy(target + i * axes[0].target, source + i * axes[0].source, sizeof(T) * static_cast<size_t>(across.length));
    return;
  }
  copy_plane(source, target, axes[0], across);
}

template <class T>
void copy_elements(const char* source, char* target, Axes axes) {
  // The axis that lies together in memory and the one that does in the copy make the plane.
  if (axes.size() > 2 && axes.back().source != 1) {
    auto together = std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.source == 1; });
    if (together != axes.end()) std::rotate(together, together + 1, axes.end() - 1);
  }
  while (axes.size() < 2) axes.insert(axes.begin(), Axis{1, 0, 0});
  copy_axes(reinterpret_cast<const T*>(source), reinterpret_cast<T*>(target), axes.data(), axes.size());
}

// The elements in logical order.
void gather(const char* source, char* target, at::IntArrayRef shape, at::IntArrayRef strides, size_t size) {
  Axes axes;
  int64_t target_stride = 1;
  for (size_t i = shape.size(); i-- > 0; target_stride *= shape[i]) axes.insert(axes.begin(), Axis{shape[i], strides[i], target_stride});
  switch (size) {
    case 1: return copy_elements<uint8_t>(source, target, axes);
    case 2: return copy_elements<uint16_t>(source, target, axes);
    case 4: return copy_elements<uint32_t>(source, target, axes);
    case 8: return copy_elements<uint64_t>(source, target, axes);
    default: return copy_elements<Wide>(source, target, axes);
  }
}

size_t count_of(at::IntArrayRef shape) {
  size_t count = 1;
  for (int64_t length : shape) count *= static_cast<size_t>(length);
  return count;
}

// Hands out the elements in pieces of at most about CHUNK bytes.
template <class Use>
void pieces(const char* source, at::IntArrayRef shape, at::IntArrayRef strides, size_t size, char* buffer, const Use& use) {
  const size_t nbytes = count_of(shape) * size;
  if (nbytes <= CHUNK || shape.empty()) {
    gather(source, buffer, shape, strides, size);
    use(buffer, nbytes);
    return;
  }
  const size_t row = nbytes / static_cast<size_t>(shape[0]);
  auto rows = static_cast<int64_t>(CHUNK / row);
  if (rows > BLOCK) rows -= rows % BLOCK;
  const auto step = static_cast<int64_t>(size) * strides[0];
  if (rows == 0) {
    for (int64_t i = 0; i < shape[0]; ++i) pieces(source + i * step, shape.slice(1), strides.slice(1), size, buffer, use);
    return;
  }
  c10::SmallVector<int64_t, 8> some(shape.begin(), shape.end());
  for (int64_t first = 0; first < shape[0]; first += rows) {
    some[0] = std::min(rows, shape[0] - first);
    gather(source + first * step, buffer, some, strides, size);
    use(buffer, row * static_cast<size_t>(some[0]));
  }
}

// Rows are read where they lie.
bool is_in_rows(const Layout& layout, size_t size) {
  return layout.strides.back() == 1 && !(static_cast<size_t>(layout.shape.back()) * size % STRIPE) &&
      count_of(layout.shape) * size > MIN_ROWS && layout.shape.size() > 1;
}

uint64_t digest_of_rows(const char* source, const Layout& layout, size_t size) {
  c10::SmallVector<Steps, 6> axes;
  for (size_t i = 0; i + 1 < layout.shape.size(); ++i) axes.push_back({layout.shape[i], layout.strides[i] * static_cast<int64_t>(size)});
  return xxh3().digest_rows(source, axes.data(), axes.size(), static_cast<size_t>(layout.shape.back()) * size);
}

uint64_t digest_of(const char* source, const Layout& layout, size_t size, char* buffer) {
  const size_t nbytes = count_of(layout.shape) * size;
  const auto& hash = xxh3();
  if (nbytes <= CHUNK) {
    gather(source, buffer, layout.shape, layout.strides, size);
    return hash.digest(buffer, nbytes);
  }
  void* state = hash.begin();
  pieces(source, layout.shape, layout.strides, size, buffer, [&](const char* data, size_t length) { hash.update(state, data, length); });
  return hash.finish(state);
}

}  // namespace

Layout layout_of(at::IntArrayRef shape, at::IntArrayRef strides) {
  Layout found;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (!found.shape.empty() && found.strides.back() == shape[i] * strides[i]) {
      found.shape.back() *= shape[i];
      found.strides.back() = strides[i];
    } else {
      found.shape.push_back(shape[i]);
      found.strides.push_back(strides[i]);
    }
  }
  if (found.shape.empty()) {
    found.shape.push_back(1);
    found.strides.push_back(1);
  }
  return found;
}

uint64_t Values::digest(const void* data, size_t nbytes, uint64_t salt) {
  const uint64_t found = xxh3().digest(data, nbytes) ^ salt;
  return found ? found : 1;
}

uint64_t Values::digest(const char* first, const Layout& layout, size_t size, uint64_t salt, char* buffer) {
  const bool in_rows = is_in_rows(layout, size);
  const uint64_t found = (in_rows ? digest_of_rows(first, layout, size) : digest_of(first, layout, size, buffer)) ^ salt;
  return found ? found : 1;
}

uint64_t Values::of_memory(const void* data, size_t nbytes, uint64_t salt) {
  const WithoutGil free(nbytes);
  return digest(data, nbytes, salt);
}

uint64_t Values::of_strided(const at::Tensor& tensor, const char* first, uint64_t salt) {
  const size_t size = tensor.itemsize(), nbytes = tensor.nbytes();
  const Layout layout = layout_of(tensor.sizes(), tensor.strides());
  // Kept for the next one: to take and give back as much each time is to ask the system for it each time.
  auto buffer = std::move(buffer_);
  const size_t needed = is_in_rows(layout, size) ? 0 : std::min(nbytes, CHUNK);
  if (buffer.size() < needed) buffer.resize(needed);
  uint64_t found;
  {
    const WithoutGil free(nbytes);
    found = digest(first, layout, size, salt, buffer.data());
  }
  buffer_ = std::move(buffer);
  return found;
}

}  // namespace opguard
