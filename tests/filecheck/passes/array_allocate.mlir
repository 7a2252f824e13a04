// RUN: cnncc opt %s -p 'array-allocate{arch=spatial-8x8}' | filecheck %s

// DRAM: weights in the order of their symbols (not of their tensors), then the other tensors in order; factors, which no
// tensor holds, take no place.
builtin.module {
  weights.global @a : tensor<2x3xi16> = dense<1> : tensor<2x3xi16>
  weights.global @f : tensor<3xf32> = dense<1.0> : tensor<3xf32>
  weights.global @b : tensor<5xi16> = dense<1> : tensor<5xi16>
  // CHECK: array.tensor x, memory dram, words 7, shape [7], role input, scale 0.5, at 11
  array.tensor x, memory dram, words 7, shape [7], role input, scale 0.5
  // CHECK-NEXT: array.tensor b, memory dram, words 5, role weight, at 6
  array.tensor b, memory dram, words 5, role weight
  // CHECK-NEXT: array.tensor a, memory dram, words 6, role weight, at 0
  array.tensor a, memory dram, words 6, role weight
  // CHECK-NEXT: array.tensor y, memory dram, words 13, role output, at 18
  array.tensor y, memory dram, words 13, role output
  // The host's own memory has no addresses.
  // CHECK-NEXT: array.tensor probabilities, memory host, words 10, role output{{$}}
  array.tensor probabilities, memory host, words 10, role output
  // GLB: the largest first. `one` lives in layers 0 and 1, `two` in 1 and 2, `three` in 2: it takes the place of `one`.
  // CHECK-NEXT: array.tensor one, memory glb, words 100, at 0
  array.tensor one, memory glb, words 100
  // CHECK-NEXT: array.tensor two, memory glb, words 90, at 100
  array.tensor two, memory glb, words 90
  // CHECK-NEXT: array.tensor three, memory glb, words 80, at 0
  array.tensor three, memory glb, words 80
  // Between two places, where it just fits; and a tensor that is never viewed has no place.
  // CHECK-NEXT: array.tensor four, memory glb, words 20, at 80
  array.tensor four, memory glb, words 20
  // CHECK-NEXT: array.tensor unused, memory glb, words 80{{$}}
  array.tensor unused, memory glb, words 80, at 5
  array.layer "l0" computes "" {
    array.view v, tensor one
  }
  array.layer "l1" computes "" {
    array.view v, tensor one
    array.view w, tensor two
  }
  array.host inputs [x], outputs [y] model <"865127f90da2046f">
  array.layer "l2" computes "" {
    array.view v, tensor two
    array.view w, tensor three
    array.view x, tensor four
  }
}
