// RUN: cnncc opt %s -p 'array-to-isa' | filecheck %s

builtin.module {
  // Weights that a tensor holds stay; the factors, which an instruction holds, go.
  // CHECK: weights.global @w
  weights.global @w : tensor<7xi16> = dense<1> : tensor<7xi16>
  // CHECK-NOT: weights.global
  weights.global @f : tensor<3xf32> = dense<[1.0, -2.0, 0.5]> : tensor<3xf32>
  // CHECK: array.tensor w, memory dram, words 7, role weight, at 0
  array.tensor w, memory dram, words 7, role weight, at 0
  // CHECK-NEXT: array.tensor g, memory glb, words 100, at 4096
  array.tensor g, memory glb, words 100, at 4096
  array.layer "first" computes "" {
    array.view d, tensor w
    array.view g, tensor g
    array.dma in, dram d, glb g, words 3, count 2, dram_offset -1, glb_offset 5, dram_step 3, glb_step 4, rows 5, y -1, x 2, tokens take 1 give 2
    array.signal semaphore 3, count 2
    array.sync [dma, commit]
  }
  array.layer "second" computes "y" attributes {mapping = "c > h"} {
    // Loop registers are depths, in the layer's order of loops; each view counts from 0 again.
    array.view x, tensor g, height 8, width 7, pitch 7, plane 56, fill -3, zero -3, wrap 9, ring_y 6, ring_x 5, steps [y+2*h1, k-c0]
    array.unit bias, scale, zero 2, clamp [-5, 6], factors f, add_clamp [-7, 8]
    array.repeat c0, count 3 {
      array.repeat h1, count 2 {
        // Fewer than four extents stand at the fast end. Conditions by register; left out is never, [] always.
        array.load ifmap, view x, place row0 1 col0 2 rows 4 cols 6 set 2x3 y+row k+2*row_set x+3*col lin+4*col_set, start lin+1 k+2 y-3 x+4, pattern [5 by x+1, 6 by y-1], slot 7, edge, open always, close [h1, c0], tokens take 3 give 0 when [c0]
        array.mac mac, place row0 1 col0 2 rows 4 cols 6 set 2x3, pixels 2, taps 9, step_range 4, lanes 3, data_reuse 6, n2n_slot 3, ifmap 1+2*pixel+3*tap+4*channel-5*lane, weight 5+6*pixel+7*tap+8*channel+13*lane, psum 9+10*pixel+11*tap+12*channel, clear [c0], send [h1], take_weight always, give_weight [c0], take_ifmap always, give_ifmap always
      }
    }
    // A sibling has the same registers; a loop of one iteration stays a loop.
    array.repeat c0, count 1 {
      array.mac max, step_range 3, lanes 2, ifmap 4*lane, psum 2*channel+lane
      array.commit x, place rows 2 cols 1 y+row, start k+3, residual x, params x, param 5, pixels 2 by x+1, lines 3 by y-2, channels 4 by k+1, psum 1+12*pixel+4*tap+channel, tokens give 1 when [c0]
      array.unit factors f, multiply
    }
  }
}

// Which instructions belong to which layer: everything but the halt.
// CHECK-NEXT: isa.layer <label = "first", first = 0, count = 5>
// CHECK-NEXT: isa.layer <label = "second", first = 5, count = 15, value = "y"> {mapping = "c > h"}
// CHECK-NEXT: isa.inst "desc" comment "first: d: w"
// CHECK-NEXT: isa.inst "desc id=1 base=4096" comment "g: g"
// CHECK-NEXT: isa.inst "dma glb=1 count=2 words=3 dram_offset=-1 glb_offset=5 dram_step=3 glb_step=4 y=-1 x=2 rows=5 take=1 give=2 take_when=always give_when=always" comment "first: 30 words from w to g"
// CHECK-NEXT: isa.inst "signal semaphore=3 count=2"
// CHECK-NEXT: isa.inst "sync dma=1 commit=1"
// CHECK-NEXT: isa.inst "desc base=4096 height=8 width=7 pitch=7 plane=56 fill=-3 zero=-3 wrap=9 ring_y=6 ring_x=5" comment "second: x: g"
// CHECK-NEXT: isa.inst "step loop=1 by=y*2" comment "by h1"
// CHECK-NEXT: isa.inst "step by=k*-1" comment "by c0"
// Factors by their bits.
// CHECK-NEXT: isa.inst "unit bias=1 scale=1 residual=1 zero=2 clamp_lo=-5 clamp_hi=6 factor_a=0x3f800000 factor_b=0xc0000000 fixed=0x3f000000 add_lo=-7 add_hi=8" comment "second: output units"
// CHECK-NEXT: isa.inst "loop count=3" comment "c0"
// CHECK-NEXT: isa.inst "loop count=2" comment "h1"
// CHECK-NEXT: isa.inst "load row0=1 rows=4 col0=2 cols=6 take=3 take_when=always kind=ifmap set_rows=2 set_cols=3 slot=7 open=always close=0+1 edge=1 offset=1 channel=2 y=-3 x=4 extent2=5 extent3=6 term2=x*1 term3=y*-1 row=y*1 row_set=k*2 col=x*3 col_set=lin*4" comment "second: ifmap, 30 words a PE from the virtual neighbour"
// CHECK-NEXT: isa.inst "mac row0=1 rows=4 col0=2 cols=6 set_cols=3 clear=0 send=1 take_weight=always give_weight=0 take_ifmap=always give_ifmap=always pixels=2 taps=9 step_range=4 data_reuse=6 n2n_slot=3 ifmap_slot=1 weight_slot=5 psum_slot=9 ifmap_z=2 ifmap_j=3 ifmap_i=4 weight_z=6 weight_j=7 weight_i=8 psum_z=10 psum_j=11 psum_i=12 lanes=3 ifmap_l=-5 weight_l=13" comment "second: 72 steps of 3 products on 24 PEs"
// CHECK-NEXT: isa.inst "end"
// CHECK-NEXT: isa.inst "end"
// A count of 1, as every default, is left out.
// CHECK-NEXT: isa.inst "loop" comment "c0"
// CHECK-NEXT: isa.inst "mac op=max psum_l=1 step_range=3 psum_i=2 lanes=2 ifmap_l=4" comment "second: 3 steps of 2 psums on 1 PEs"
// CHECK-NEXT: isa.inst "commit rows=2 give=1 give_when=0 channel=3 param=5 pixels=2 lines=3 channels=4 psum_slot=1 pixel_term=x*1 line_term=y*-2 channel_term=k*1 psum_z=12 psum_j=4 psum_i=1 row=y*1" comment "second: 48 results to g"
// CHECK-NEXT: isa.inst "unit residual=1 multiply=1 clamp_lo=-2147483648 clamp_hi=2147483647 factor_a=0x3f800000 factor_b=0xc0000000 fixed=0x3f000000 add_lo=-2147483648 add_hi=2147483647"
// CHECK-NEXT: isa.inst "end"
// CHECK-NEXT: isa.inst "halt"
