// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton | FileCheck %s

// The launch counts its runs, and writes to the host's memory only where the flag is set and no other check has failed.
// CHECK:      def check_{{[0-9a-f]+}}(flag, found, report, runs, number):
// CHECK-NEXT:   call = tl.load(runs) + 1
// CHECK-NEXT:   tl.store(runs, call)
// CHECK-NEXT:   failed = (tl.load(flag) != 0) & (tl.load(report) == 0)
// CHECK-NEXT:   tl.store(report + 2, call, mask=failed)
// CHECK-NEXT:   tl.store(report + 1, tl.load(found), mask=failed)
// CHECK-NEXT:   tl.store(report, number.to(tl.int64), mask=failed)
func.func @look_up(%x: tensor<8x4xf32>, %i: tensor<6xi64>) -> tensor<6x4xf32> {
  %size = "gflow.constant"() {value = dense<8> : tensor<6xi64>} : () -> tensor<6xi64>
  %over = "gflow.compare"(%i, %size) {predicate = "ge"} : (tensor<6xi64>, tensor<6xi64>) -> tensor<6xi1>
  %bad = "gflow.reduce"(%over) {kind = "any", dims = array<i64: 0>} : (tensor<6xi1>) -> tensor<i1>
  %most = "gflow.reduce"(%i) {kind = "max", dims = array<i64: 0>} : (tensor<6xi64>) -> tensor<i64>
  "gflow.check"(%bad, %most) {error = "IndexError", message = "index {} is out of range"} : (tensor<i1>, tensor<i64>) -> ()
  %0 = "gflow.take"(%x, %i) {dim = 0 : i64} : (tensor<8x4xf32>, tensor<6xi64>) -> tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
