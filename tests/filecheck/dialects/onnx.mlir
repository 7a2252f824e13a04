// RUN: cnncc opt %s | filecheck %s
// RUN: cnncc opt %s --print-op-generic | filecheck %s --check-prefix GENERIC
// RUN: not cnncc opt %s -p onnx-no-such-pass 2>&1 | filecheck %s --check-prefix REFUSED

// What the parser makes of its own printing is tested on whole models in test_frontend_import.py.
builtin.module attributes {onnx.ir_version = 9 : i64, onnx.opset_imports = {ai.onnx = 17 : i64}} {
  // Names that no SSA value can have, and text beyond ASCII.
  // CHECK: func.func @main(%x: tensor<1x2x5x7xf32> {onnx.name = "x/0"}) -> (tensor<1x3x3x5xf32> {onnx.name = "\C3\A9"})
  func.func @main(%x: tensor<1x2x5x7xf32> {onnx.name = "x/0"}) -> (tensor<1x3x3x5xf32> {onnx.name = "\C3\A9"}) {
    // CHECK-NEXT: %none = onnx.absent
    %none = onnx.absent
    // CHECK-NEXT: %w = weights.constant : tensor<3x2x3x3xf32> = dense<5.000000e-01> : tensor<3x2x3x3xf32>
    %w = weights.constant : tensor<3x2x3x3xf32> = dense<0.5> : tensor<3x2x3x3xf32>
    // All parts at once. ONNX attributes may be called like the op's own properties.
    // CHECK-NEXT: %y, %z = onnx.node "Conv" domain "my.ops" name "c1"(%x, %w, %none) outputs ["y", "\C3\A9"] {alpha = 1.000000e-01 : f32, op_type = "deep", outputs = 3 : i64, pads = array<i64: 0, 1>, proto = #onnx.proto<"YWI=">, table = #weights.ref<"865127f90da2046f">} : (tensor<1x2x5x7xf32>, tensor<3x2x3x3xf32>, none) -> (tensor<1x3x3x5xf32>, !onnx.value<"seq(tensor(float))">)
    // GENERIC: "onnx.node"(%x, %w, %none) <{op_type = "Conv", domain = "my.ops", node_name = "c1", outputs = ["y", "\C3\A9"]}> {alpha
    %y, %z = onnx.node "Conv" domain "my.ops" name "c1" (%x, %w, %none) outputs ["y", "\C3\A9"] {alpha = 0.1 : f32, op_type = "deep", outputs = 3 : i64, pads = array<i64: 0, 1>, proto = #onnx.proto<"YWI=">, table = #weights.ref<"865127f90da2046f">} : (tensor<1x2x5x7xf32>, tensor<3x2x3x3xf32>, none) -> (tensor<1x3x3x5xf32>, !onnx.value<"seq(tensor(float))">)
    // A value from outside that a sub-graph takes by name; an element type that MLIR does not have.
    // CHECK-NEXT: %q = onnx.node "If"(%y, %x) captures ["x/0"] : (tensor<1x3x3x5xf32>, tensor<1x2x5x7xf32>) -> tensor<?x!onnx.element<"float8e4m3fn">>
    %q = onnx.node "If" (%y, %x) captures ["x/0"] : (tensor<1x3x3x5xf32>, tensor<1x2x5x7xf32>) -> tensor<?x!onnx.element<"float8e4m3fn">>
    func.return %y : tensor<1x3x3x5xf32>
  }
}

// REFUSED: cnncc: -p: no pass 'onnx-no-such-pass': did you mean
