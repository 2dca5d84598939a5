// Stand-ins for the TorchScript classes of AWS's runtime, so that a package can be saved, scripted and
// loaded. A graph's bytes are its key; operators written in Python (runtime.py) run it.

#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include <torch/library.h>
#include <torch/script.h>

namespace {

using Tensors = std::vector<at::Tensor>;
using Ranked = std::vector<Tensors>;
using Named = c10::Dict<std::string, at::Tensor>;

torch::jit::Stack call(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack;
}

struct Program : torch::CustomClassHolder {
  std::string graph, meta;
  int64_t local, world;

  Program(std::string graph, std::string meta, int64_t local, int64_t world)
      : graph(graph), meta(meta), local(local), world(world) {}

  void initialize(c10::List<Named> states, c10::List<Named> weights, int64_t start) {
    call("outrider_nxd::initialize", {graph, states, weights, start});
  }

  Tensors forward(Tensors inputs) {
    return call("outrider_nxd::run", {graph, c10::List<at::Tensor>(inputs)})[0].toTensorVector();
  }

  Ranked ranked(Ranked inputs) { return {forward(inputs[0])}; }

  bool write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return true;
  }

  bool save_neff(std::string path) { return write(path, graph); }
  bool save_metaneff(std::string path) { return write(path, meta); }
};

struct Layout : torch::CustomClassHolder {
  std::string graph, meta;
  int64_t local;

  Layout(std::string graph, std::string meta, int64_t local)
      : graph(graph), meta(meta), local(local) {}

  c10::List<Named> forward(c10::List<Named> weights, bool) { return weights; }
};

using ProgramState = std::tuple<std::string, std::string, int64_t, int64_t>;
using LayoutState = std::tuple<std::string, std::string, int64_t>;

TORCH_LIBRARY(neuron, library) {
  library.class_<Program>("SPMDModel")
      .def(torch::init<std::string, std::string, int64_t, int64_t>())
      .def("initialize", &Program::initialize)
      .def("forward", &Program::forward)
      .def("forward_ranked", &Program::ranked)
      .def("forward_async", &Program::ranked)
      .def("forward_ranked_to_cpu", &Program::ranked)
      .def("save_neff", &Program::save_neff)
      .def("save_metaneff", &Program::save_metaneff)
      .def_pickle(
          [](const c10::intrusive_ptr<Program>& from) -> ProgramState {
            return {from->graph, from->meta, from->local, from->world};
          },
          [](ProgramState state) { return std::apply([](auto... each) {
            return c10::make_intrusive<Program>(each...); }, state); });
  library.class_<Layout>("LayoutTransformation")
      .def(torch::init<std::string, std::string, int64_t>())
      .def("forward", &Layout::forward)
      .def_pickle(
          [](const c10::intrusive_ptr<Layout>& from) -> LayoutState {
            return {from->graph, from->meta, from->local};
          },
          [](LayoutState state) { return std::apply([](auto... each) {
            return c10::make_intrusive<Layout>(each...); }, state); });
  library.def("_parallel_load(Dict(str, Tensor)[] x) -> Dict(str, Tensor)[]",
              [](c10::List<Named> weights) { return weights; });
}

}  // namespace
