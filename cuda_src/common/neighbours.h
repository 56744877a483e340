/* The keys that order rows of bits by their distance from a query, shared by C and kernels: integers that are smaller the nearer a row
 * is, so distances are never compared as floats. */
#ifndef BITSPARSE_NEIGHBOURS_H
#define BITSPARSE_NEIGHBOURS_H

#include "common/scalar.h"

/* The key of rows that have nothing in common with the query, and of missing answers. */
#define BS_FARTHEST 0xffffffffu
/* Rows have at most this many bits. */
#define BS_MOST_BITS 65536u

/* The key, from the number of ones of both rows added and the number they have in common. The Jaccard distance is a fraction d / u with
 * u <= 2^16, and two different fractions are at least 2^-32 apart: rounded down to multiples of 2^-32 they keep their order, and only
 * equal ones stay equal. */
BS_FN bs_u32 bs_key_of(int jaccard, bs_u32 common, bs_u32 sum)
{
    if (!jaccard)
        return sum - 2 * common;
    const bs_u32 all = sum - common;
    if (common == all) /* also for two empty rows */
        return 0;
    return common && all ? (bs_u32)(((bs_u64)(all - common) << 32) / all) : BS_FARTHEST;
}

typedef struct {
    bs_u32 apart, all; /* a Jaccard distance, reduced */
} bs_fraction;

/* The fraction that a key stands for: the first convergent of the middle of the key's interval that lies in the interval. The fraction
 * is nearer to the middle than 1 / (2 all^2), so it is a convergent (Legendre). */
BS_FN bs_fraction bs_fraction_of_key(bs_u32 key)
{
    bs_fraction found = {key != 0, 1};
    if (key == 0 || key == BS_FARTHEST)
        return found;
    bs_u64 n = 2 * (bs_u64)key + 1, d = (bs_u64)1 << 33, h = 1, h_before = 0, u = 0, u_before = 1;
    while (d) {
        const bs_u64 a = n / d, rest = n - a * d, h_next = a * h + h_before, u_next = a * u + u_before;
        if (u_next > BS_MOST_BITS)
            break;
        h_before = h, h = h_next, u_before = u, u = u_next;
        if ((h << 32) / u == key)
            break;
        n = d, d = rest;
    }
    found.apart = (bs_u32)h, found.all = (bs_u32)u;
    return found;
}

/* The Jaccard distance of a key, rounded once. */
BS_FN float bs_jaccard_of_key(bs_u32 key)
{
    const bs_fraction f = bs_fraction_of_key(key);
    return bs_divf((float)f.apart, (float)f.all);
}

/* What a row must have in common with a query that has `ones` ones, to get a key below `key`, or not above it: weight * common - share *
 * (ones of the row) >= bound. */
typedef struct {
    bs_i64 bound;
    bs_i32 weight, share;
} bs_nearer;

BS_FN bs_nearer bs_nearer_than(int jaccard, bs_u32 key, bs_i64 ones, int or_equal)
{
    bs_nearer test = {ones - (bs_i64)key + !or_equal, 2, 1};
    if (jaccard && !ones) { /* only empty rows equal an empty query; all others are as far as can be */
        test.bound = key || or_equal ? 0 : 1, test.weight = 0;
        test.share = !(or_equal && key == BS_FARTHEST); /* 0: any row passes */
    } else if (jaccard) { /* c / (sum - c) > p / q */
        const bs_fraction f = bs_fraction_of_key(key);
        test.share = (bs_i32)(f.all - f.apart), test.weight = test.share + (bs_i32)f.all;
        test.bound = test.share * ones + !or_equal;
    }
    return test;
}

#endif
