// References to arrays, and small arrays in place; no file holds a large one.
// RUN: cnncc opt %s | filecheck %s

// A symbol, for levels from cnn down.
// CHECK: weights.global @conv1.w : tensor<2x3x5x5xi16> = #weights.ref<"5f0c">
weights.global @conv1.w : tensor<2x3x5x5xi16> = #weights.ref<"5f0c">
// Written in place, as tests do: every value, or one for all. Unsigned integers say so.
// CHECK-NEXT: weights.global @conv1.b : tensor<3xi32> = dense<[7, -8, 9]> : tensor<3xi32>
weights.global @conv1.b : tensor<3xi32> = dense<[7, -8, 9]> : tensor<3xi32>
// CHECK-NEXT: weights.global @conv1.z : tensor<3xui8> = dense<128> : tensor<3xui8>
weights.global @conv1.z : tensor<3xui8> = dense<128> : tensor<3xui8>
// A value, for the onnx level; the only result type is a tensor, of rank 0 too.
// CHECK-NEXT: %w = weights.constant : tensor<f32> = #weights.ref<"0b17">
%w = weights.constant : tensor<f32> = #weights.ref<"0b17">
// CHECK-NEXT: %b = weights.constant : tensor<2xf32> = dense<[5.000000e-01, -1.500000e+00]> : tensor<2xf32>
%b = weights.constant : tensor<2xf32> = dense<[0.5, -1.5]> : tensor<2xf32>
