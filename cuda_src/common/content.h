/* The fingerprint of memory that host and GPU agree on: a sum modulo 2^64 over its 64-bit words, in any order. */
#ifndef BITSPARSE_CONTENT_H
#define BITSPARSE_CONTENT_H

#include "common/scalar.h"

/* What the word at a place adds to the sum: splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014) of the word plus a multiple of
 * the golden ratio, which is a bijection of the word. So a change of one word always shows, and any other change shows except with
 * probability 2^-64. */
BS_FN bs_u64 bs_content(bs_u64 word, bs_u64 place)
{
    word += (place + 1) * 0x9E3779B97F4A7C15u;
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    return word ^ word >> 31;
}

#endif
