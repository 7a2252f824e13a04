// RUN: cnncc opt %s --split-input-file --verify-diagnostics | filecheck %s

// An array in place has the type of the symbol, or of the value.
// CHECK: weights.global: its type is tensor<3xi32>, its array's is tensor<4xi32>
weights.global @b : tensor<3xi32> = dense<7> : tensor<4xi32>

// -----

// CHECK: weights.constant: its type is tensor<2xf32>, its array's is tensor<2xi32>
%b = weights.constant : tensor<2xf32> = dense<7> : tensor<2xi32>
