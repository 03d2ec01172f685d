// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4+amx}))' | FileCheck %s --check-prefix=AMX
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4 blas=false}))' | FileCheck %s --check-prefix=V4
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4+amx},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=CODE
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4+bf16}))' | FileCheck %s --check-prefix=BF16
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v4+bf16},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=DOTS
// RUN: not %gflow-opt %s --pass-pipeline="builtin.module(func.func(gflow-select-kernels{isa=x86-64-v4+avx}))" 2>&1 | FileCheck %s --check-prefix=NONE

// NONE: isa must be one of x86-64-v4+amx, x86-64-v4+bf16, x86-64-v4, x86-64-v3,

// With Intel AMX, large float32 products are made from bfloat16 products.
// AMX-LABEL: func.func @large(
// AMX:       gflow.kernel = {block = array<i64: {{[0-9]+}}, {{[0-9]+}}, {{[0-9]+}}>, kind = "panels", precision = "bf16x6", scratch = {{[0-9]+}} : i64, threads = "all", tile = array<i64: 32, 32, 384>}
// V4-LABEL:  func.func @large(
// V4-NOT:    precision
// V4:        tile = array<i64: {{8, 48|12, 32|6, 64}},
// CODE-DAG:  llvm.call_intrinsic "llvm.x86.tdpbf16ps"({{.*}}) : (i8, i8, i8) -> () // AMX
// CODE-DAG:  arith.constant true // AMX
func.func @large(%x: tensor<1024x384xf32>, %w: tensor<384x1536xf32>) -> tensor<1024x1536xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<1024x384xf32>, tensor<384x1536xf32>) -> tensor<1024x1536xf32>
  return %0 : tensor<1024x1536xf32>
}

// Few columns do not pay for packing in three parts.
// AMX-LABEL: func.func @narrow(
// AMX-NOT:   bf16x6
func.func @narrow(%x: tensor<4096x96xf32>, %w: tensor<96x16xf32>) -> tensor<4096x16xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<4096x96xf32>, tensor<96x16xf32>) -> tensor<4096x16xf32>
  return %0 : tensor<4096x16xf32>
}

// Products of bfloat16 values are made by AMX, or by AVX-512's dot products.
// AMX-LABEL:  func.func @halves(
// AMX:        precision = "bf16"
// BF16-LABEL: func.func @halves(
// BF16:       precision = "bf16"
// V4-LABEL:   func.func @halves(
// V4-NOT:     precision
// DOTS-DAG:   arith.constant true // AVX512-BF16
// DOTS-DAG:   llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.512"({{.*}}) : (vector<16xf32>, vector<32xbf16>, vector<32xbf16>) -> vector<16xf32> // AVX512-BF16
func.func @halves(%x: tensor<1024x384xbf16>, %w: tensor<384x1536xbf16>) -> tensor<1024x1536xbf16> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<1024x384xbf16>, tensor<384x1536xbf16>) -> tensor<1024x1536xbf16>
  return %0 : tensor<1024x1536xbf16>
}
