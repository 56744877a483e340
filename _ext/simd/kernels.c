/* All hot loops of one instruction set: this file is compiled once per level (see meson.build) and exports one table. */
#include "simd/kernels_isa.h"

#include "simd/kernels_quant.inc"
#include "simd/kernels_pack.inc"
#include "simd/kernels_reduce.inc"
#include "simd/kernels_planes.inc"
#include "simd/kernels_search.inc"
#include "simd/kernels_digits.inc"
#include "simd/kernels_bytes.inc"
#include "simd/kernels_blocks.inc"
#include "simd/kernels_gaps.inc"
#include "simd/kernels_cells.inc"
#if defined(BS_ISA_AVX512)
#include "simd/kernels_lines.inc"
#include "simd/kernels_sorted.inc"
#endif

const bs_kernels NAME(bs_kernels) = {
    .load_codes = load_codes,
    .load_float = load_float,
    .load_double = load_double,
    .quantize_float = quantize_float,
    .quantize_double = quantize_double,
    .half_words = half_words,
    .store_values = store_values,
    .dequantize_float = dequantize_float,
    .dequantize_double = dequantize_double,
    .store_float = store_float,
    .pack_sign_float = pack_sign_float,
    .pack_planes = pack_planes,
    .pack_fields = pack_fields,
    .pack_columns = pack_columns,
    .unpack_planes = unpack_planes,
    .unpack_fields = unpack_fields,
    .unpack_columns = unpack_columns,
    .popcount = popcount,
    .or_words = or_words,
    .range_float = range_float,
    .range_double = range_double,
    .range_columns_float = range_columns_float,
    .range_columns_double = range_columns_double,
    .planes_step_words = PLANES_STEP_WORDS,
    .planes_pack = planes_pack,
    .planes_micro = planes_micro,
    .line_counts = line_counts,
    .passing = passing,
    .digits_split = digits_split,
    .digits_micro = digits_micro,
    .planes_to_form = planes_to_form,
    .interleave = interleave,
    .bytes_rows = BYTES_CALL_ROWS,
    .bytes_micro = bytes_micro,
    .bytes_product = bytes_product,
    .bytes_gather = bytes_gather,
    .lines_gather = lines_gather,
    .ints_to_float = ints_to_float,
    .codes_to_bytes = codes_to_bytes,
    .nearest_bytes = nearest_bytes,
#if defined(BS_ISA_AVX512)
    .bytes_lines = bytes_lines,
#endif
    .fields_to_bytes = fields_to_bytes,
    .planes_to_bytes = planes_to_bytes,
    .gaps_to_columns = gaps_to_columns,
    .panel_cells_i32 = panel_cells_i32,
    .panel_cells_i64 = panel_cells_i64,
#if defined(BS_ISA_AVX512)
    .few_cells_i32 = few_cells_i32,
    .few_cells_i64 = few_cells_i64,
#endif
    .take_columns_i32 = take_columns_i32,
    .take_columns_i64 = take_columns_i64,
    .acc_to_float = acc_to_float,
    .scale_row = scale_row,
    .multiply_row = multiply_row,
    .add_row = add_row,
    .add_product_row = add_product_row,
    .activate_row = activate_row,
    .has_nan = has_nan,
    .stream = stream,
    .store_int32 = store_int32,
};
