#include "rows.h"

namespace opguard {

namespace {

// An array.array: holds its numbers as they are, and hands them out as Python numbers.
template <class T>
py::object array_of(const std::vector<T>& numbers) {
  static PyObject* type = py::object(py::module_::import("array").attr("array")).release().ptr();
  const py::bytes data(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return py::handle(type)(sizeof(T) == 8 ? "Q" : "i", data);
}

}  // namespace

void Rows::append(const Head& head, const std::vector<ReadRow>& reads, const std::vector<WriteRow>& writes) {
  ++num_events;
  Columns& c = columns_;
  c.lane.push_back(head.lane);
  c.phase.push_back(head.phase);
  c.kind.push_back(head.kind);
  c.op.push_back(head.op);
  c.args.push_back(head.args);
  c.module.push_back(head.module);
  c.stack.push_back(head.stack);
  c.key.push_back(head.key);
  c.flags.push_back(head.flags);
  c.generator.push_back(head.generator);
  c.state_before.push_back(head.state_before);
  c.state_after.push_back(head.state_after);
  for (const auto& read : reads) {
    c.read_value.push_back(read.value);
    c.read_spec.push_back(read.spec);
    c.read_flags.push_back(read.flags);
    c.writers.insert(c.writers.end(), read.writers.begin(), read.writers.end());
    c.writer_offsets.push_back(static_cast<int32_t>(c.writers.size()));
  }
  c.read_offsets.push_back(static_cast<int32_t>(c.read_value.size()));
  for (const auto& write : writes) {
    c.write_value.push_back(write.value);
    c.write_spec.push_back(write.spec);
    c.write_slot.push_back(write.slot);
    c.write_flags.push_back(write.flags);
  }
  c.write_offsets.push_back(static_cast<int32_t>(c.write_value.size()));
}

void Rows::append_tuples(const py::tuple& row, const py::list& reads, const py::list& writes) {
  const auto number = [&](size_t place) { return py::cast<int32_t>(row[place]); };
  const Head head{number(0), number(1), number(2), number(3), number(4), number(5), number(6), number(7), number(8),
                  number(9), py::cast<uint64_t>(row[10]), py::cast<uint64_t>(row[11])};
  std::vector<ReadRow> read_rows;
  for (const auto& item : reads) {
    const auto read = py::cast<py::tuple>(item);
    read_rows.push_back({py::cast<uint64_t>(read[0]), py::cast<int32_t>(read[1]), py::cast<int32_t>(read[2]), py::cast<Events>(read[3])});
  }
  std::vector<WriteRow> write_rows;
  for (const auto& item : writes) {
    const auto write = py::cast<py::tuple>(item);
    write_rows.push_back(
        {py::cast<uint64_t>(write[0]), py::cast<int32_t>(write[1]), py::cast<int32_t>(write[2]), py::cast<int32_t>(write[3])});
  }
  append(head, read_rows, write_rows);
}

void Rows::make_setup() {
  constexpr int SETUP = 0, FORWARD = 2;
  for (auto& phase : columns_.phase)
    if (phase == FORWARD) phase = SETUP;
}

void Rows::replace(const std::unordered_map<uint64_t, uint64_t>& values, const std::function<bool(int, uint64_t)>& is_weak) {
  Columns& c = columns_;
  for (auto& value : c.read_value)
    if (auto found = values.find(value); found != values.end()) value = found->second;
  for (size_t i = 0; i < c.write_value.size(); ++i) {
    auto found = values.find(c.write_value[i]);
    if (found == values.end()) continue;
    c.write_value[i] = found->second;
    if (is_weak(c.write_spec[i], found->second)) c.write_flags[i] |= WEAK;
  }
}

py::object Rows::take(int step, const py::object& strings) {
  if (before_take) before_take();
  static PyObject* type = py::object(py::module_::import("opguard_ci.trace.model").attr("StepTable")).release().ptr();
  Columns& c = columns_;
  py::object table = py::handle(type)(step, first_, strings);
  const auto set = [&](const char* name, const auto& numbers) { table.attr(name) = array_of(numbers); };
  set("lane", c.lane);
  set("phase", c.phase);
  set("kind", c.kind);
  set("op", c.op);
  set("args", c.args);
  set("module", c.module);
  set("stack", c.stack);
  set("key", c.key);
  set("flags", c.flags);
  set("generator", c.generator);
  set("state_before", c.state_before);
  set("state_after", c.state_after);
  set("read_offsets", c.read_offsets);
  set("read_value", c.read_value);
  set("read_spec", c.read_spec);
  set("read_flags", c.read_flags);
  set("writer_offsets", c.writer_offsets);
  set("writers", c.writers);
  set("write_offsets", c.write_offsets);
  set("write_value", c.write_value);
  set("write_spec", c.write_spec);
  set("write_slot", c.write_slot);
  set("write_flags", c.write_flags);
  clear();
  first_ = num_events;
  return table;
}

void Rows::clear() { columns_ = Columns(); }

void bind_rows(py::module_& module) {
  py::class_<Rows, std::shared_ptr<Rows>>(module, "Rows")
      .def(py::init<>())
      .def_readonly("num_events", &Rows::num_events)
      .def_readwrite("num_calls", &Rows::num_calls)
      .def_readwrite("num_hashed", &Rows::num_hashed)
      .def("append", &Rows::append_tuples)
      .def("make_setup", &Rows::make_setup)
      .def("take", &Rows::take)
      .def("clear", &Rows::clear);
}

}  // namespace opguard
