// Loops, stages and epilogue in standard dialects.

// RUN: cnncc opt %s -p nest-to-scf | filecheck %s

// What is named after cnncc goes.
// CHECK: builtin.module {
builtin.module attributes {cnn.psum_bits = 32 : i64} {
weights.global @w : tensor<5x3x3x1xi8> = dense<3> : tensor<5x3x3x1xi8>
weights.global @b : tensor<5xi32> = dense<7> : tensor<5xi32>
weights.global @q : tensor<5xf32> = dense<0.25> : tensor<5xf32>
// CHECK-NEXT: "memref.global"() <{sym_name = "w", type = memref<5x3x3x1xi8>, initial_value = dense<3> : tensor<5x3x3x1xi8>, sym_visibility = "private", constant}>

// CHECK: func.func @main(%x: memref<1x3x7x2xi8>, %output: memref<1x5x4x2xi8>) {
func.func @main(%x: tensor<1x3x7x2xi8>) -> tensor<1x5x4x2xi8> {
  // CHECK: %[[CONV:.*]] = memref.alloc() : memref<1x5x4x2xi8>
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 5, c = 3, h = 4, w = 2, r = 3, s = 1>
       window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0], fill = 4, zero = 4>
       then <bias = "b", scale = "q", zero = -1, clamp = [-128, 127]> label "conv0" : tensor<1x3x7x2xi8> -> tensor<1x5x4x2xi8> {
    // 2 does not divide 5: the last tile ends with the layer.
    // CHECK: scf.for %[[K:.*]] = %c0 to %c5 step %c2 {
    // CHECK-NEXT: %[[NEXT:.*]] = arith.addi %[[K]], %c2 : index
    // CHECK-NEXT: %[[END:.*]] = arith.minsi %[[NEXT]], %c5 : index
    nest.for k step 2 {
      // The buffer has place for two channels, of which it may get one.
      // CHECK-NEXT: %[[WEIGHT:.*]] = memref.alloc() : memref<2x3x3x1xi8>
      // CHECK-NEXT: scf.for %[[I:.*]] = %[[K]] to %[[END]] step %c1 {
      // CHECK: memref.load %w[%[[I]],
      // CHECK-NEXT: %[[AT:.*]] = arith.subi %[[I]], %[[K]] : index
      // CHECK-NEXT: memref.store %{{.*}}, %[[WEIGHT]][%[[AT]],
      nest.stage weight in glb buffers 1
      // CHECK: %[[OUT:.*]] = memref.alloc() : memref<1x2x4x2xi8>
      nest.stage output in glb buffers 1
      // CHECK-NEXT: "scf.parallel"(%[[K]], %[[END]], %c1)
      // CHECK-NEXT: ^bb0(%[[K1:.*]]: index):
      nest.par k on rows {
        // 2 divides 4.
        // CHECK-NEXT: scf.for %[[H:.*]] = %c0 to %c4 step %c2 {
        nest.for h step 2 {
          // CHECK-NEXT: %[[HEND:.*]] = arith.addi %[[H]], %c2 : index
          // CHECK-NEXT: scf.for %[[H1:.*]] = %[[H]] to %[[HEND]] step %c1 {
          nest.for h {
            // CHECK-NEXT: "scf.parallel"(%c0, %c2, %c1)
            // CHECK-NEXT: ^bb0(%[[W:.*]]: index):
            nest.par w on cols {
              // Sums belong to one PE: no loop around them is over c, r or s.
              // CHECK-NEXT: %[[SUMS:.*]] = memref.alloc() : memref<1x1x1x1xi32>
              // CHECK-NEXT: memref.store %c0_i32, %[[SUMS]]
              // PEs in space that share sums take turns.
              // CHECK-NEXT: scf.for %[[C:.*]] = %c0 to %c3 step %c1 {
              nest.par c on rows {
                // The rows of three taps, without those in the padding.
                // CHECK-NEXT: %[[IFMAP:.*]] = memref.alloc() : memref<1x1x3x1xi8>
                // CHECK: arith.maxsi %{{.*}}, %c0 : index
                // CHECK: arith.minsi %{{.*}}, %c7 : index
                // CHECK: memref.store %{{.*}}, %[[IFMAP]]
                nest.stage ifmap in rf buffers 2
                // CHECK: scf.for %[[R:.*]] = %c0 to %c3 step %c1 {
                nest.for r keep {
                  // CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %{{.*}}, %c7 : index
                  // CHECK-NEXT: %[[PIXEL:.*]] = scf.if %[[INSIDE]] -> (i32) {
                  // CHECK-NEXT:   memref.load %[[IFMAP]][%c0, %c0, %[[R]], %c0]
                  // CHECK-NEXT:   arith.extsi
                  // CHECK-NEXT:   scf.yield
                  // CHECK-NEXT: } else {
                  // CHECK-NEXT:   scf.yield %c4_i32
                  // CHECK-NEXT: }
                  // CHECK-NEXT: %[[TERM:.*]] = arith.subi %[[PIXEL]], %c4_i32 : i32
                  // CHECK: memref.load %[[WEIGHT]]
                  // CHECK: arith.muli %[[TERM]]
                  // CHECK: memref.store %{{.*}}, %[[SUMS]]
                  nest.mac
                }
              }
              // CHECK: memref.dealloc %[[IFMAP]]
              // CHECK: %[[SUM:.*]] = memref.load %[[SUMS]]
              // CHECK-NEXT: %[[B:.*]] = memref.load %b[%[[K1]]]
              // CHECK-NEXT: %[[Q:.*]] = memref.load %q[%[[K1]]]
              // CHECK-NEXT: %[[V:.*]] = arith.addi %[[SUM]], %[[B]] : i32
              // CHECK-NEXT: %[[F:.*]] = arith.sitofp %[[V]] : i32 to f32
              // CHECK-NEXT: %[[P:.*]] = arith.mulf %[[F]], %[[Q]] : f32
              // CHECK-NEXT: %[[ROUNDED:.*]] = math.roundeven %[[P]] : f32
              // CHECK-NEXT: %[[WIDE:.*]] = arith.extf %[[ROUNDED]] : f32 to f64
              // CHECK-NEXT: arith.addf %[[WIDE]]
              // CHECK-NEXT: arith.maxnumf
              // CHECK-NEXT: arith.minnumf
              // CHECK-NEXT: arith.fptosi
              // CHECK-NEXT: arith.trunci %{{.*}} : i32 to i8
              // CHECK: memref.store %{{.*}}, %[[OUT]]
              // CHECK-NEXT: memref.dealloc %[[SUMS]]
            }
          }
        }
      }
      // CHECK: memref.load %[[OUT]]
      // CHECK-NEXT: memref.store %{{.*}}, %[[CONV]]
    }
  }
  // CHECK: memref.dealloc %[[OUT]]
  // CHECK: "memref.copy"(%[[CONV]], %output)
  // CHECK-NEXT: memref.dealloc %[[CONV]]
  // CHECK-NEXT: func.return
  func.return %0 : tensor<1x5x4x2xi8>
}
}
