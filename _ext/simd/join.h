/* Names of functions that are compiled several times: BS_JOIN(sum, BS_ISA) is sum_avx2. Arguments are expanded before they are joined. */
#ifndef BITSPARSE_JOIN_H
#define BITSPARSE_JOIN_H

#define BS_JOIN_(a, b) a##_##b
#define BS_JOIN(a, b) BS_JOIN_(a, b)

#endif
