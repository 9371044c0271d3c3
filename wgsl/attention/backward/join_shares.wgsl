{# What the threads of a workgroup have in `shares` is added up into the first, which thread 0 may read then. Statements
   of an entry point. #}
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (thread < half) {
            shares[thread] += shares[thread + half];
        }
    }
