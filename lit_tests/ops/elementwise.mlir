// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// Every op reads back as it was printed.

// CHECK-LABEL: func.func @add(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.add"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @add(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.add"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @sub(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sub"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sub(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sub"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @mul(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.mul"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @mul(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.mul"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @div(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.div"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @div(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.div"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @remainder(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.remainder"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @remainder(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.remainder"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @fmod(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fmod"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @fmod(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.fmod"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @pow(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.pow"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @pow(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.pow"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @maximum(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.maximum"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @maximum(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.maximum"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @minimum(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.minimum"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @minimum(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.minimum"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @atan2(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.atan2"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @atan2(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.atan2"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @copysign(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.copysign"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @copysign(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.copysign"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @and(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.and"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @and(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.and"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @or(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.or"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @or(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.or"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @xor(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.xor"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @xor(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.xor"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @shift_left(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.shift_left"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @shift_left(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.shift_left"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @shift_right(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.shift_right"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @shift_right(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.shift_right"(%arg0, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @not(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.not"(%arg0) : (tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi32>
func.func @not(%arg0: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "gflow.not"(%arg0) : (tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// CHECK-LABEL: func.func @compare(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.compare"(%arg0, %arg1) {predicate = "lt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi1>
func.func @compare(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xi1> {
  %0 = "gflow.compare"(%arg0, %arg1) {predicate = "lt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %0 : tensor<4xi1>
}

// CHECK-LABEL: func.func @select(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.select"(%arg0, %arg1, %arg2) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @select(%arg0: tensor<4xi1>, %arg1: tensor<4xf32>, %arg2: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.select"(%arg0, %arg1, %arg2) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @convert(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK-NEXT:   return %[[v0]] : tensor<4xbf16>
func.func @convert(%arg0: tensor<4xf32>) -> tensor<4xbf16> {
  %0 = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}

// CHECK-LABEL: func.func @neg(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @neg(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @abs(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.abs"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @abs(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.abs"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @sign(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sign"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sign(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sign"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @floor(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.floor"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @floor(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.floor"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @ceil(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.ceil"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @ceil(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.ceil"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @trunc(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.trunc"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @trunc(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.trunc"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @round(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.round"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @round(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.round"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @is_nan(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.is_nan"(%arg0) : (tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi1>
func.func @is_nan(%arg0: tensor<4xf32>) -> tensor<4xi1> {
  %0 = "gflow.is_nan"(%arg0) : (tensor<4xf32>) -> tensor<4xi1>
  return %0 : tensor<4xi1>
}

// CHECK-LABEL: func.func @is_inf(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.is_inf"(%arg0) : (tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v0]] : tensor<4xi1>
func.func @is_inf(%arg0: tensor<4xf32>) -> tensor<4xi1> {
  %0 = "gflow.is_inf"(%arg0) : (tensor<4xf32>) -> tensor<4xi1>
  return %0 : tensor<4xi1>
}

// CHECK-LABEL: func.func @sqrt(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sqrt"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sqrt(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sqrt"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @rsqrt(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.rsqrt"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @rsqrt(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.rsqrt"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @reciprocal(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reciprocal"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @reciprocal(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.reciprocal"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @exp(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @exp(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @exp2(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp2"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @exp2(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.exp2"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @expm1(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.expm1"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @expm1(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.expm1"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @log(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.log"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @log(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.log"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @log2(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.log2"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @log2(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.log2"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @log10(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.log10"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @log10(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.log10"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @log1p(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.log1p"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @log1p(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.log1p"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @sin(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sin"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sin(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sin"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @cos(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.cos"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @cos(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.cos"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @tan(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.tan"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @tan(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.tan"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @asin(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.asin"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @asin(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.asin"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @acos(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.acos"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @acos(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.acos"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @atan(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.atan"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @atan(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.atan"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @sinh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sinh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sinh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sinh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @cosh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.cosh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @cosh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.cosh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @tanh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.tanh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @tanh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.tanh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @asinh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.asinh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @asinh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.asinh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @acosh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.acosh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @acosh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.acosh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @atanh(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.atanh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @atanh(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.atanh"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @erf(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.erf"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @erf(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.erf"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @erfc(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.erfc"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @erfc(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.erfc"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @erfinv(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.erfinv"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @erfinv(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.erfinv"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @sigmoid(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.sigmoid"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @sigmoid(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.sigmoid"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// CHECK-LABEL: func.func @fma(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fma"(%arg0, %arg1, %arg2) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4xf32>
func.func @fma(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>, %arg2: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.fma"(%arg0, %arg1, %arg2) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
