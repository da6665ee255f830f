/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <criterion/criterion.h>
#include <math.h>

enum { VOCABULARY = 5, DRAWS = 100000 };

/* Tokens 0 to 4 have the probabilities 0.15, 0.5, 0, 0.05 and 0.3. */
static const double probabilities[VOCABULARY] = {0.15, 0.5, 0.0, 0.05, 0.3};

static void make_logits(float logits[VOCABULARY], double temperature) {
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = probabilities[i] > 0 ? (float)(3 + temperature * log(probabilities[i])) : -1000.0f;
}

/* Draws many tokens and compares how often each came with what it should. */
static void check_frequencies(const sampling *how, const double wanted[VOCABULARY]) {
    float logits[VOCABULARY];
    sample_candidate scratch[VOCABULARY];
    uint64_t generator = sample_seed(1, 0);
    int counts[VOCABULARY] = {0};
    make_logits(logits, how->temperature);
    for (int i = 0; i < DRAWS; i++) {
        int32_t token = sample_token(how, logits, VOCABULARY, &generator, scratch);
        cr_assert(token >= 0 && token < VOCABULARY);
        counts[token]++;
    }
    for (int i = 0; i < VOCABULARY; i++) {
        double deviation = sqrt(DRAWS * wanted[i] * (1 - wanted[i]));
        cr_assert_leq(fabs(counts[i] - DRAWS * wanted[i]), 5 * deviation,
                      "temperature %g, top-p %g: token %d came %d times", (double)how->temperature, (double)how->top_p,
                      i, counts[i]);
    }
}

Test(generate_sample, greedy_takes_the_first_largest) {
    const float logits[] = {-1, 4, 2, 4, -9};
    const sampling how = {.temperature = 0, .top_p = 1};
    uint64_t generator = 0;
    sample_candidate scratch[VOCABULARY];
    cr_assert_eq(sample_token(&how, logits, VOCABULARY, &generator, scratch), 1);
    cr_assert_eq(generator, 0, "no number is drawn");
}

Test(generate_sample, draws_by_probability) {
    check_frequencies(&(sampling){.temperature = 1, .top_p = 1}, probabilities);
    check_frequencies(&(sampling){.temperature = 0.5f, .top_p = 1}, probabilities);
    check_frequencies(&(sampling){.temperature = 3, .top_p = 1}, probabilities);
}

Test(generate_sample, top_p_keeps_the_likeliest) {
    static const double three[VOCABULARY] = {0.15 / 0.95, 0.5 / 0.95, 0, 0, 0.3 / 0.95};
    static const double two[VOCABULARY] = {0, 0.5 / 0.8, 0, 0, 0.3 / 0.8};
    static const double one[VOCABULARY] = {0, 1, 0, 0, 0};
    check_frequencies(&(sampling){.temperature = 1, .top_p = 0.9f}, three);
    check_frequencies(&(sampling){.temperature = 1, .top_p = 0.7f}, two);
    check_frequencies(&(sampling){.temperature = 1, .top_p = 0.4f}, one);
    check_frequencies(&(sampling){.temperature = 1, .top_p = 1e-9f}, one);
}

Test(generate_sample, refuses_logits_that_are_not_finite) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    sample_candidate scratch[VOCABULARY];
    for (int i = 0; i < 3; i++)
        for (int place = 0; place < VOCABULARY; place++)
            for (int temperature = 0; temperature < 2; temperature++) {
                float logits[VOCABULARY] = {1, 2, 3, 4, 5};
                uint64_t generator = 0;
                logits[place] = bad[i];
                sampling how = {.temperature = (float)temperature, .top_p = 0.5f};
                cr_assert_eq(sample_token(&how, logits, VOCABULARY, &generator, scratch), -1);
            }
}

Test(generate_sample, seeds_and_streams_differ) {
    uint64_t seeds[] = {sample_seed(0, 0), sample_seed(0, 1), sample_seed(1, 0), sample_seed(1, 1)};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            cr_assert_neq(seeds[i], seeds[j]);
    cr_assert_eq(sample_seed(5, 6), sample_seed(5, 6));
}
