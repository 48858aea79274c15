"""radixlang: prompt programs that fork, on a runtime that never computes a prefix twice."""
