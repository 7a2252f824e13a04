// RUN: cnncc opt %s | filecheck %s
// RUN: cnncc opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

builtin.module {
  // CHECK: isa.segment <number = 0, inputs = ["a", "b/1"], outputs = ["c"]> model <"865127f90da2046f">
  isa.segment <number = 0, inputs = ["a", "b/1"], outputs = ["c"]> model <"865127f90da2046f">
  // What else is known of a layer is text.
  // CHECK-NEXT: isa.layer <label = "conv1", first = 0, count = 5, value = "relu1"> {mapping = "h'||2 > c"}
  isa.layer <label = "conv1", first = 0, count = 5, value = "relu1"> {mapping = "h'||2 > c"}
  // Every kind of field: number, negative number, hexadecimal, term, condition, name; with a comment and without.
  // CHECK-NEXT: isa.inst "loop count=3" comment "c2"
  // GENERIC: "isa.inst"() <{text = "loop count=3", comment = "c2"}> : () -> ()
  isa.inst "loop count=3" comment "c2"
  // CHECK-NEXT: isa.inst "load rows=4 cols=8 take=2 take_when=0+2 kind=ifmap open=always close=never y=-1 term3=y*-2"
  isa.inst "load rows=4 cols=8 take=2 take_when=0+2 kind=ifmap open=always close=never y=-1 term3=y*-2"
  // CHECK-NEXT: isa.inst "unit factor_a=0x3f800000"
  isa.inst "unit factor_a=0x3f800000"
  // CHECK-NEXT: isa.inst "end"
  isa.inst "end"
  // CHECK-NEXT: isa.inst "halt"
  isa.inst "halt"
}
