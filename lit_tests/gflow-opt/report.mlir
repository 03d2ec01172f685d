// RUN: %gflow-opt %s --pipeline-for=cpu --gflow-report=h100 --gflow-timing -o %t 2>&1 | FileCheck %s
// RUN: not %gflow-opt %s --gflow-report=h1000 2>&1 | FileCheck %s --check-prefix=DEVICE

// CHECK:              before after
// CHECK-NEXT: kernels      4     {{[1-3]}}
// CHECK-NEXT: bytes moved  2.75 MiB  2.00 MiB   72.7 %
// CHECK-NEXT: operations
// CHECK-NEXT: least time on h100
// CHECK-NEXT: arena
// CHECK:      By kind, after the passes:
// CHECK:      kind kernels bytes operations time share
// CHECK:      fused
// CHECK:      The heaviest kernels:
// CHECK:      forward:model.act {{.*}}net.py:3
// CHECK:      warning: these ops have no kernels and run through PyTorch:
// CHECK:      1 × aten.sort.stable forward:model.act net.py:3
// CHECK:      Execution time report
// CHECK-DAG:  gflow-fuse
// CHECK-DAG:  parse
// CHECK-DAG:  print
// DEVICE: gflow-opt: no device 'h1000'; did you mean 'h100'? (known: cpu,
#act = loc("forward:model.act"("net.py":3:0))
func.func @f(%x: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %0 = "gflow.exp"(%x) : (tensor<256x256xf32>) -> tensor<256x256xf32> loc(#act)
  %1 = "gflow.add"(%0, %x) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32> loc(#act)
  %2:2 = "gflow.aten"(%1) {args = "[[{\22t\22: 0}], {\22stable\22: true, \22dim\22: 1}]", overload = "aten.sort.stable", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<256x256xf32>) -> (tensor<256x256xf32>, tensor<256x256xi64>) loc(#act)
  %3 = "gflow.tanh"(%2#0) : (tensor<256x256xf32>) -> tensor<256x256xf32> loc(#act)
  return %3 : tensor<256x256xf32>
}
