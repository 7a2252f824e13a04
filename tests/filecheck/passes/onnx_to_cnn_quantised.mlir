// RUN: cnncc opt %s -p onnx-to-cnn | filecheck %s
// RUN: cnncc opt %s -p onnx-to-cnn{operand-bits=8} | filecheck %s --check-prefix=BYTES
// RUN: not cnncc opt %s -p onnx-to-cnn{operand-bits=7} 2>&1 | filecheck %s --check-prefix=NARROW
// RUN: not cnncc opt %s -p onnx-to-cnn{psum-bits=10} 2>&1 | filecheck %s --check-prefix=PSUM

// NARROW: the model's codes have 8 bits, operands have 7
// The zero points make the greatest |x - 100| 155, and |w - 1| 3, in each of 2 products.
// PSUM: 'conv': the sums of channel 0 may reach 930, psums of 10 bits hold 511

builtin.module attributes {onnx.ir_version = 9 : i64, onnx.opset_imports = {ai.onnx = 17 : i64}} {
// The QuantizeLinear is the input's scale; a code is a word, or a word of 8 bits less 128.
// CHECK: func.func @main(%x: tensor<1x2x3x3xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5, zero = 100, clamp = [0, 255]>})
// CHECK-SAME: tensor<1x1x3x3xi16> {onnx.name = "codes", cnn.quant = #cnn.quant<scale = 1.0, clamp = [0, 255], element = "uint8">}
// CHECK-SAME: tensor<1x1x3x3xi16> {onnx.name = "reals", cnn.quant = #cnn.quant<scale = 2.0, zero = 7, clamp = [0, 255]>}
// BYTES: func.func @main(%x: tensor<1x2x3x3xi8> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5, zero = -28, clamp = [-128, 127]>})
// BYTES-SAME: cnn.quant = #cnn.quant<scale = 1.0, zero = -128, clamp = [-128, 127], element = "uint8">
func.func @main(%x: tensor<1x2x3x3xf32> {onnx.name = "x"})
    -> (tensor<1x1x3x3xui8> {onnx.name = "codes"}, tensor<1x1x3x3xf32> {onnx.name = "reals"}) {
  %xs = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  %xz = weights.constant : tensor<ui8> = dense<100> : tensor<ui8>
  %w = weights.constant : tensor<1x2x1x1xi8> = dense<4> : tensor<1x2x1x1xi8>
  %ws = weights.constant : tensor<f32> = dense<0.25> : tensor<f32>
  %wz = weights.constant : tensor<i8> = dense<1> : tensor<i8>
  %ys = weights.constant : tensor<f32> = dense<2.0> : tensor<f32>
  %yz = weights.constant : tensor<ui8> = dense<7> : tensor<ui8>
  %q = onnx.node "QuantizeLinear" name "q"(%x, %xs, %xz) : (tensor<1x2x3x3xf32>, tensor<f32>, tensor<ui8>) -> tensor<1x2x3x3xui8>

  // CHECK-NEXT: %[[C:.*]] = cnn.conv %x weights @conv.w window <kernel = [1, 1], fill = 100, zero = 100> label "conv"
  // CHECK-NEXT: %[[Q:.*]] = cnn.requant %[[C]] by <scale = "conv.q", zero = 7, clamp = [0, 255]> label "conv.requant"
  // CHECK-NEXT: func.return %[[Q]], %[[Q]]
  // BYTES-NEXT: cnn.conv %x weights @conv.w window <kernel = [1, 1], fill = -28, zero = -28> label "conv"
  // BYTES-NEXT: cnn.requant %{{.*}} by <scale = "conv.q", zero = -121, clamp = [-128, 127]> label "conv.requant"
  %c = onnx.node "QLinearConv" name "conv"(%q, %xs, %xz, %w, %ws, %wz, %ys, %yz) : (tensor<1x2x3x3xui8>, tensor<f32>, tensor<ui8>, tensor<1x2x1x1xi8>, tensor<f32>, tensor<i8>, tensor<f32>, tensor<ui8>) -> tensor<1x1x3x3xui8>
  %d = onnx.node "DequantizeLinear" name "d"(%c, %ys, %yz) : (tensor<1x1x3x3xui8>, tensor<f32>, tensor<ui8>) -> tensor<1x1x3x3xf32>
  func.return %c, %d : tensor<1x1x3x3xui8>, tensor<1x1x3x3xf32>
}
}
