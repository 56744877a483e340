/* Names of functions that are compiled several times: BS_JOIN(sum, BS_ISA) is sum_avx2. What an argument stands for is joined, not its name. */
#ifndef BITSPARSE_JOIN_H
#define BITSPARSE_JOIN_H

#define BS_JOIN_(a, b) a##_##b
#define BS_JOIN(a, b) BS_JOIN_(a, b)

#endif
