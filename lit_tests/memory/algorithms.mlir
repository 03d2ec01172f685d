// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-schedule{algorithm=MemoryFirst}))' | FileCheck %s --check-prefix=MEMORY
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-schedule{algorithm=Disable}))' | FileCheck %s --check-prefix=OFF
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-schedule{algorithm=OverlapCpuGpu device=h100}))' | FileCheck %s --check-prefix=OVERLAP
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-schedule{algorithm=DelayShortGpu}))' | FileCheck %s --check-prefix=DELAY
// RUN: not %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-schedule{algorithm=Fast}))' 2>&1 | FileCheck %s --check-prefix=BAD
// BAD: error: no algorithm 'Fast'; there are SpeedFirst, MemoryFirst, Disable, OverlapCpuGpu, DelayShortGpu

// Least memory: the row is summed, and dies, before the other one is made.
// MEMORY-LABEL: func.func @rows(
// MEMORY:         "gflow.matmul"
// MEMORY-NEXT:    "gflow.reduce"
// MEMORY-NEXT:    "gflow.matmul"
// MEMORY-NEXT:    "gflow.reduce"
// OFF-LABEL:    func.func @rows(
// OFF:            "gflow.matmul"
// OFF-NEXT:       "gflow.matmul"
// OFF-NEXT:       "gflow.reduce"
// OFF-NEXT:       "gflow.reduce"
func.func @rows(%x: tensor<64x64xf32>, %y: tensor<64x64xf32>) -> tensor<64xf32> {
  %a = "gflow.matmul"(%x, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "gflow.matmul"(%y, %y) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %s = "gflow.reduce"(%a) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  %t = "gflow.reduce"(%b) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  %r = "gflow.add"(%s, %t) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return %r : tensor<64xf32>
}

// A step through PyTorch that waits for nothing comes first; the one that needs a kernel comes after
// those that can be queued meanwhile. Short kernels go behind the long one.
// OVERLAP-LABEL: func.func @steps(
// OVERLAP:         "gflow.aten"(%arg1)
// OVERLAP:         "gflow.neg"
// OVERLAP:         "gflow.matmul"
// OVERLAP:         "gflow.aten"(%{{[0-9]+}})
// DELAY-LABEL:   func.func @steps(
// DELAY:           "gflow.matmul"
// DELAY:           "gflow.neg"
func.func @steps(%x: tensor<512x512xf32>, %y: tensor<64xf32>) -> (tensor<512x512xf32>, tensor<64xf32>, tensor<64xf32>) {
  %n = "gflow.neg"(%y) : (tensor<64xf32>) -> tensor<64xf32>
  %m = "gflow.matmul"(%x, %x) : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %t = "gflow.aten"(%m) {overload = "aten.flip.default", args = "[[{\22t\22: 0}, [0]], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<512x512xf32>) -> tensor<512x512xf32>
  %u = "gflow.aten"(%y) {overload = "aten.flip.default", args = "[[{\22t\22: 0}, [0]], {}]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64xf32>) -> tensor<64xf32>
  return %t, %n, %u : tensor<512x512xf32>, tensor<64xf32>, tensor<64xf32>
}

// A step that may fail waits for the condition of its branch, and not for another check.
// OVERLAP-LABEL: func.func @branch(
// OVERLAP:         "gflow.reduce"
// OVERLAP:         "gflow.check"
// OVERLAP-SAME:    OtherBranch
// OVERLAP:         "gflow.aten"
// OVERLAP-LABEL: func.func @checked(
// OVERLAP:         "gflow.aten"
// OVERLAP:         "gflow.reduce"
// OVERLAP:         "gflow.check"
func.func @branch(%x: tensor<64xf32>, %i: tensor<4xi64>, %bad: tensor<8xi1>) -> tensor<4xf32> {
  %b = "gflow.reduce"(%bad) {dims = array<i64: 0>, kind = "any"} : (tensor<8xi1>) -> tensor<i1>
  "gflow.check"(%b) {error = "OtherBranch", message = "condition 0"} : (tensor<i1>) -> ()
  %r = "gflow.aten"(%x, %i) {overload = "aten.index_select.default", args = "[[{\22t\22: 0}, 0, {\22t\22: 1}], {}]", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64xf32>, tensor<4xi64>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @checked(%x: tensor<64xf32>, %i: tensor<4xi64>, %bad: tensor<8xi1>) -> tensor<4xf32> {
  %b = "gflow.reduce"(%bad) {dims = array<i64: 0>, kind = "any"} : (tensor<8xi1>) -> tensor<i1>
  "gflow.check"(%b) {error = "IndexError", message = "out of range"} : (tensor<i1>) -> ()
  %r = "gflow.aten"(%x, %i) {overload = "aten.index_select.default", args = "[[{\22t\22: 0}, 0, {\22t\22: 1}], {}]", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64xf32>, tensor<4xi64>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
