// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{column-length=1024},gflow-join-columns{target=cuda:90}))' | FileCheck %s
// RUN: not %gflow-opt %s --gflow-join-columns 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: products reduce columns on GPUs: name one as target

// The product's tiles have all 64 rows of their columns.

// CHECK-LABEL: func.func @whole(
// CHECK-NEXT:   %[[r:.+]]:2 = "gflow.fused"(%arg1, %arg0, %arg2) ({
// CHECK:        %[[p:.+]] = "gflow.matmul"
// CHECK:        %[[s:.+]] = "gflow.reduce"(%[[p]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
// CHECK:        "gflow.yield"(%{{.+}}, %[[s]]) {{.*}} : (tensor<64x96xf32>, tensor<96xf32>) -> ()
// CHECK-NEXT:   }) {kind = "contraction"
// CHECK-NEXT:   return %[[r]]#0, %[[r]]#1
func.func @whole(%x: tensor<64x32xf32>, %w: tensor<32x96xf32>, %v: tensor<64x96xf32>) -> (tensor<64x96xf32>, tensor<96xf32>) {
  %p = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %s = "gflow.reduce"(%p) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 1>, shape = array<i64: 64, 96>} : (tensor<96xf32>) -> tensor<64x96xf32>
  %d = "gflow.div"(%p, %b) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  %e = "gflow.add"(%d, %v) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  return %e, %s : tensor<64x96xf32>, tensor<96xf32>
}

// A row of the product, as the middle of shifted sums, is taken from the tile. The product itself is returned, too.

// CHECK-LABEL: func.func @row(
// CHECK-NEXT:   %[[r:.+]]:2 = "gflow.fused"(%arg1, %arg0) ({
// CHECK:        %[[p:.+]] = "gflow.matmul"
// CHECK:        %[[m:.+]] = "gflow.slice"(%[[p]]) {limits = array<i64: 4, 96>, starts = array<i64: 3, 0>
// CHECK:        "gflow.yield"(%[[p]], %{{.+}})
// CHECK-NEXT:   }) {kind = "contraction"
func.func @row(%x: tensor<64x32xf32>, %w: tensor<32x96xf32>) -> (tensor<96xf32>, tensor<64x96xf32>) {
  %p = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %m = "gflow.slice"(%p) {starts = array<i64: 3, 0>, limits = array<i64: 4, 96>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
  %b = "gflow.broadcast"(%m) {dims = array<i64: 0, 1>, shape = array<i64: 64, 96>} : (tensor<1x96xf32>) -> tensor<64x96xf32>
  %d = "gflow.sub"(%p, %b) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  %s = "gflow.reduce"(%d) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  return %s, %p : tensor<96xf32>, tensor<64x96xf32>
}

// The sums need what another product computes from the result: they stay behind it.

// CHECK-LABEL: func.func @between(
// CHECK-NEXT:   "gflow.matmul"
// CHECK-NEXT:   "gflow.matmul"
// CHECK:        "gflow.fused"
// CHECK:        }) {kind = "column"
func.func @between(%x: tensor<64x32xf32>, %w: tensor<32x96xf32>, %v: tensor<96x96xf32>, %u: tensor<64x96xf32>) -> tensor<96xf32> {
  %p = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %q = "gflow.matmul"(%p, %v) : (tensor<64x96xf32>, tensor<96x96xf32>) -> tensor<64x96xf32>
  %o = "gflow.reshape"(%q) {shape = array<i64: 96, 64>} : (tensor<64x96xf32>) -> tensor<96x64xf32>
  %t = "gflow.transpose"(%o) {permutation = array<i64: 1, 0>} : (tensor<96x64xf32>) -> tensor<64x96xf32>
  %d = "gflow.mul"(%p, %t) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  %s = "gflow.reduce"(%d) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  return %s : tensor<96xf32>
}

// Columns that are too long for a tile are another kernel.

// CHECK-LABEL: func.func @long(
// CHECK:        kind = "column"
func.func @long(%x: tensor<4096x32xf32>, %w: tensor<32x96xf32>) -> tensor<96xf32> {
  %p = "gflow.matmul"(%x, %w) : (tensor<4096x32xf32>, tensor<32x96xf32>) -> tensor<4096x96xf32>
  %s = "gflow.reduce"(%p) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x96xf32>) -> tensor<96xf32>
  return %s : tensor<96xf32>
}
