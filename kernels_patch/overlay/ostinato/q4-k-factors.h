// What a Q4_K block packs most tightly. Included by row-kernels.cpp and row-dots.h, with OSTINATO_AVX2 defined and the layouts of blocks known.

#pragma once

// The eight scales of six bits of a Q4_K block, then its eight mins, a byte each.
OSTINATO_AVX2 static inline __m128i scales_and_mins(const block_q4_K & block) {
    const __m128i v = _mm_loadu_si128((const __m128i *) &block); // d, dmin, twelve bytes
    // 0..3 and 8..11: low six bits. 4..7: low four bits of the last bytes, 12..15: their high ones, each below two high bits of the first bytes.
    const __m128i low  = _mm_shuffle_epi8(v, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i high = _mm_shuffle_epi8(v, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m128i moved = _mm_blend_epi32(low, _mm_srli_epi16(low, 4), 0x8);
    const __m128i kept  = _mm_and_si128(moved, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    return _mm_or_si128(kept, _mm_and_si128(_mm_srli_epi16(high, 2), _mm_set1_epi8(0x30)));
}
