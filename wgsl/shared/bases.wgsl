{# From natural logarithms to those of base 2 and back. #}
const LOG2_E: f32 = 1.4426950408889634;
const LN_2: f32 = 0.6931471805599453;
