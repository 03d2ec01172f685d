// RUN: %gflow-opt %s --gflow-simplify --cse --gflow-fuse --gflow-schedule | FileCheck %s --check-prefix=ORDER
// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize | FileCheck %s --check-prefix=COPY
// RUN: %gflow-opt %s --pipeline-for=cpu | %gflow-opt --gflow-verify-memory | FileCheck %s --check-prefix=ALL

// Nothing reads a result of a check, and it stays. The update waits for it; where the order is fixed already, the new
// value waits in a buffer.
// ORDER-LABEL: func.func @step(
// ORDER:         %[[BAD:.+]] = "gflow.fused"(%arg1)
// ORDER:         "gflow.check"(%[[BAD]])
// ORDER:         "gflow.fused"(%arg0, %arg2)
// ORDER-NOT:     gflow.fused
// ORDER:         return
// COPY-LABEL:  func.func @step(
// COPY:          %[[U:.+]] = "gflow.fused"(%arg0, %arg2)
// COPY:          "gflow.check"
// COPY:          %[[C:.+]] = "gflow.fused"(%[[U]])
// COPY:          return %[[C]]
// ALL-LABEL:   func.func @step(
// ALL:           "gflow.check"(%{{.+}}) {error = "IndexError", gflow.buffers = [], gflow.kernel = {kind = "kernel"}, message = "index out of range"}
// ALL:           gflow.buffers = ["arg:0"]
func.func @step(%w: tensor<8x8xf32> {gflow.role = "parameter"}, %i: tensor<8xi64>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) {
  %u = "gflow.sub"(%w, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %size = "gflow.constant"() {value = dense<8> : tensor<8xi64>} : () -> tensor<8xi64>
  %over = "gflow.compare"(%i, %size) {predicate = "ge"} : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi1>
  %bad = "gflow.reduce"(%over) {kind = "any", dims = array<i64: 0>} : (tensor<8xi1>) -> tensor<i1>
  "gflow.check"(%bad) {error = "IndexError", message = "index out of range"} : (tensor<i1>) -> ()
  return %u : tensor<8x8xf32>
}

// The check is of the new value itself: it is written to the argument after the check, from a buffer.
// ORDER-LABEL: func.func @of_the_new_value(
// ORDER:         gflow.check
// COPY-LABEL:  func.func @of_the_new_value(
// COPY:          %[[U:.+]]:2 = "gflow.fused"(%arg0
// COPY:          "gflow.check"(%[[U]]#1)
// COPY:          %[[C:.+]] = "gflow.fused"(%[[U]]#0)
// COPY:          return %[[C]]
// ALL-LABEL:   func.func @of_the_new_value(
// ALL:           gflow.check
// ALL:           gflow.buffers = ["arg:0"]
func.func @of_the_new_value(%w: tensor<8xf32> {gflow.role = "buffer"}, %g: tensor<8xf32>) -> (tensor<8xf32> {gflow.alias = 0 : i64}) {
  %u = "gflow.sub"(%w, %g) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %least = "gflow.constant"() {value = dense<0.0> : tensor<8xf32>} : () -> tensor<8xf32>
  %under = "gflow.compare"(%u, %least) {predicate = "lt"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
  %bad = "gflow.reduce"(%under) {kind = "any", dims = array<i64: 0>} : (tensor<8xi1>) -> tensor<i1>
  "gflow.check"(%bad) {error = "ValueError", message = "negative"} : (tensor<i1>) -> ()
  return %u : tensor<8xf32>
}
