// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// More elements than 32 bits can count: positions have 64.

// CHECK: (n0=4294967296, in0=arg0, out0=result0)
// CHECK: (n0: i64, in0: *i8, out0: *i8)
// CHECK: pid = tl.program_id(0).to(tl.int64)

func.func @f(%x: tensor<65536x65536xi8>) -> tensor<65536x65536xi8> {
  %0 = "gflow.neg"(%x) : (tensor<65536x65536xi8>) -> tensor<65536x65536xi8>
  return %0 : tensor<65536x65536xi8>
}
