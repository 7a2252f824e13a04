// RUN: cnncc opt %s -p onnx-fold-qdq,onnx-dead-code | filecheck %s

// CHECK: onnx.opset_imports = {ai.onnx = 17 : i64, com.microsoft = 1 : i64}
builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x2x3x3xi8> {onnx.name = "x"}, %f: tensor<1x2x3x3xf32> {onnx.name = "f"}) 
    -> (tensor<1x3x3x3xi8> {onnx.name = "o1"}, tensor<1x3x3x3xi8> {onnx.name = "o2"}, tensor<1x3x3x3xi8> {onnx.name = "o3"},
        tensor<1x2x1x1xi8> {onnx.name = "o4"}, tensor<1x2x1x1xui8> {onnx.name = "o5"}, tensor<1x2x1x1xi8> {onnx.name = "o6"},
        tensor<1x2x1x1xi8> {onnx.name = "o7"}, tensor<1x3x3x3xi8> {onnx.name = "o8"}, tensor<1x3x3x3xi8> {onnx.name = "o9"}) {
  %xs = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  %xz = weights.constant : tensor<i8> = dense<3> : tensor<i8>
  %w = weights.constant : tensor<3x2x1x1xi8> = dense<7> : tensor<3x2x1x1xi8>
  %ws = weights.constant : tensor<3xf32> = dense<[0.25, 0.5, 1.0]> : tensor<3xf32>
  %wz = weights.constant : tensor<3xi8> = dense<0> : tensor<3xi8>
  %ys = weights.constant : tensor<f32> = dense<2.0> : tensor<f32>
  %yz = weights.constant : tensor<i8> = dense<-128> : tensor<i8>
  %ym = weights.constant : tensor<i8> = dense<4> : tensor<i8>
  %b = weights.constant : tensor<3xf32> = dense<[0.25, 0.5, -1.0]> : tensor<3xf32>
  %a = onnx.node "DequantizeLinear" name "a"(%x, %xs, %xz) : (tensor<1x2x3x3xi8>, tensor<f32>, tensor<i8>) -> tensor<1x2x3x3xf32>
  %d = onnx.node "DequantizeLinear" name "d"(%w, %ws, %wz) {axis = 0 : i64} : (tensor<3x2x1x1xi8>, tensor<3xf32>, tensor<3xi8>) -> tensor<3x2x1x1xf32>

  // The weights' DequantizeLinear is constant: what still reads it (below) gets floats.
  // CHECK: %[[D:.*]] = weights.constant : tensor<3x2x1x1xf32>

  // A bias of floats is rounded to steps of the sums. The Relu goes: with the zero point -128 there are no codes below it.
  // CHECK: %[[B:.*]] = weights.constant : tensor<3xi32>
  // CHECK-NEXT: onnx.node "QLinearConv" name "conv"(%x, %xs, %xz, %w, %ws, %wz, %ys, %yz, %[[B]]) {pads = array<i64: 0, 0, 0, 0>} : {{.*}} -> tensor<1x3x3x3xi8>
  %c = onnx.node "Conv" name "conv"(%a, %d, %b) {pads = array<i64: 0, 0, 0, 0>} : (tensor<1x2x3x3xf32>, tensor<3x2x1x1xf32>, tensor<3xf32>) -> tensor<1x3x3x3xf32>
  %r = onnx.node "Relu" name "relu"(%c) : (tensor<1x3x3x3xf32>) -> tensor<1x3x3x3xf32>
  %q = onnx.node "QuantizeLinear" name "q"(%r, %ys, %yz) : (tensor<1x3x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xi8>

  // With the zero point 4 the Relu is a Clip of codes from 4 on.
  // CHECK: %[[C:.*]] = onnx.node "QLinearConv" name "conv2"(%x, %xs, %xz, %w, %ws, %wz, %ys, %ym)
  // CHECK-NEXT: %[[LO:.*]] = weights.constant : tensor<i8>
  // CHECK-NEXT: %[[HI:.*]] = weights.constant : tensor<i8>
  // CHECK-NEXT: onnx.node "Clip" name "relu2"(%[[C]], %[[LO]], %[[HI]])
  %c2 = onnx.node "Conv" name "conv2"(%a, %d) : (tensor<1x2x3x3xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x3x3xf32>
  %r2 = onnx.node "Relu" name "relu2"(%c2) : (tensor<1x3x3x3xf32>) -> tensor<1x3x3x3xf32>
  %q2 = onnx.node "QuantizeLinear" name "q2"(%r2, %ys, %ym) : (tensor<1x3x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xi8>

  // Operators of onnxruntime's own; the outputs of the QuantizeLinear keep their names. A missing zero point is 0.
  // CHECK: onnx.node "QLinearAdd" domain "com.microsoft" name "sum"(%x3, %xs, %{{.*}}, %{{.*}}, %xs, %xz, %ys, %ym) outputs ["sum_codes"]
  %e = onnx.node "DequantizeLinear" name "e"(%q, %xs, %xz) : (tensor<1x3x3x3xi8>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xf32>
  %x3 = onnx.node "Concat" name "x3"(%x, %x) {axis = 1 : i64} : (tensor<1x2x3x3xi8>, tensor<1x2x3x3xi8>) -> tensor<1x3x3x3xi8>
  %g = onnx.node "DequantizeLinear" name "g"(%x3, %xs) : (tensor<1x3x3x3xi8>, tensor<f32>) -> tensor<1x3x3x3xf32>
  %s = onnx.node "Add" name "sum"(%g, %e) : (tensor<1x3x3x3xf32>, tensor<1x3x3x3xf32>) -> tensor<1x3x3x3xf32>
  %qs = onnx.node "QuantizeLinear" name "qs"(%s, %ys, %ym) outputs ["sum_codes"] : (tensor<1x3x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xi8>
  // CHECK: onnx.node "QLinearGlobalAveragePool" domain "com.microsoft" name "mean"(%x, %xs, %xz, %ys, %ym)
  %m = onnx.node "GlobalAveragePool" name "mean"(%a) : (tensor<1x2x3x3xf32>) -> tensor<1x2x1x1xf32>
  %qm = onnx.node "QuantizeLinear" name "qm"(%m, %ys, %ym) : (tensor<1x2x1x1xf32>, tensor<f32>, tensor<i8>) -> tensor<1x2x1x1xi8>

  // Not: another type of result, a result that is read as floats too, an input in floats.
  // CHECK: onnx.node "GlobalAveragePool" name "signs"
  %m2 = onnx.node "GlobalAveragePool" name "signs"(%a) : (tensor<1x2x3x3xf32>) -> tensor<1x2x1x1xf32>
  %qm2 = onnx.node "QuantizeLinear" name "qm2"(%m2, %ys) : (tensor<1x2x1x1xf32>, tensor<f32>) -> tensor<1x2x1x1xui8>
  // CHECK: onnx.node "GlobalAveragePool" name "twice"
  %m3 = onnx.node "GlobalAveragePool" name "twice"(%a) : (tensor<1x2x3x3xf32>) -> tensor<1x2x1x1xf32>
  %qm3 = onnx.node "QuantizeLinear" name "qm3"(%m3, %ys, %ym) : (tensor<1x2x1x1xf32>, tensor<f32>, tensor<i8>) -> tensor<1x2x1x1xi8>
  %qm4 = onnx.node "QuantizeLinear" name "qm4"(%m3, %xs, %xz) : (tensor<1x2x1x1xf32>, tensor<f32>, tensor<i8>) -> tensor<1x2x1x1xi8>
  // CHECK: onnx.node "Conv" name "floats"(%f, %[[D]])
  %c3 = onnx.node "Conv" name "floats"(%f, %d) : (tensor<1x2x3x3xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x3x3xf32>
  %q3 = onnx.node "QuantizeLinear" name "q3"(%c3, %ys, %ym) : (tensor<1x3x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xi8>
  // Scales along another axis than the output channels say nothing of an output channel.
  // CHECK: onnx.node "Conv" name "axis"
  %wi = weights.constant : tensor<2xf32> = dense<[0.25, 0.5]> : tensor<2xf32>
  %d2 = onnx.node "DequantizeLinear" name "d2"(%w, %wi) : (tensor<3x2x1x1xi8>, tensor<2xf32>) -> tensor<3x2x1x1xf32>
  %c4 = onnx.node "Conv" name "axis"(%a, %d2) : (tensor<1x2x3x3xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x3x3xf32>
  %q4 = onnx.node "QuantizeLinear" name "q4"(%c4, %ys, %ym) : (tensor<1x3x3x3xf32>, tensor<f32>, tensor<i8>) -> tensor<1x3x3x3xi8>
  func.return %q, %q2, %qs, %qm, %qm2, %qm3, %qm4, %q3, %q4 : tensor<1x3x3x3xi8>, tensor<1x3x3x3xi8>, tensor<1x3x3x3xi8>, tensor<1x2x1x1xi8>, tensor<1x2x1x1xui8>, tensor<1x2x1x1xi8>, tensor<1x2x1x1xi8>, tensor<1x3x3x3xi8>, tensor<1x3x3x3xi8>
}
}
