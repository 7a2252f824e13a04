// The taps of a window side by side in a PE's lanes.

// RUN: cnncc opt %s -p 'nest-to-array{arch="%s.toml"}' | filecheck %s

// Two columns and two channels: in both register files channels follow each other, then columns.
builtin.module {
  // CHECK: array.layer "window"
  // CHECK: array.mac mac, pixels 3, lanes 4, ifmap 2*pixel+lane, weight lane, psum pixel
  weights.global @w : tensor<1x2x1x2xi16> = dense<1> : tensor<1x2x1x2xi16>
  func.func @main(%x: tensor<1x2x1x4xi16> {onnx.name = "image", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x1x1x3xi32> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.25>}) {
    %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 1, c = 2, h = 1, w = 3, r = 1, s = 2> window <kernel = [1, 2]> then <>
         label "window" until "window" : tensor<1x2x1x4xi16> -> tensor<1x1x1x3xi32> {
      nest.stage weight in glb buffers 1
      nest.stage weight in rf buffers 2
      nest.stage ifmap in rf buffers 2
      nest.for w keep { nest.par s on lanes keep { nest.par c on lanes keep { nest.mac } } }
    }
    func.return %0 : tensor<1x1x1x3xi32>
  }
}
