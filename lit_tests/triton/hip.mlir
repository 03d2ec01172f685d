// RUN: %gflow-opt %s --pipeline-for=hip:gfx942 --emit=triton --target=hip:gfx942 | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=hip:gfx942 --emit=launches --target=hip:gfx942 | FileCheck %s --check-prefix=LAUNCHES

// Warps are of 64 threads, and a loop's next tile waits in registers.

// CHECK:     @product for hip:gfx942: 1 steps, 1 kernels
// CHECK:     from triton.language.extra import libdevice
// CHECK:     config 0: BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 64, GROUP_M = 8, 4 warps, 3 stages
// LAUNCHES:  @product on mi300x
func.func @product(%x: tensor<4096x4096xbf16>, %y: tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16> {
  %0 = "gflow.matmul"(%x, %y) : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
  return %0 : tensor<4096x4096xbf16>
}
