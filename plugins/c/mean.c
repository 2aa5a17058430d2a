/* Merge in C: Δ = Σ w·v / Σ w over the contributions, then Θ ← Θ − η·Δ.
 *
 * w = tokens · (tokens / steps), as Decoupled DiLoCo (arXiv 2604.21428) weighs islands; η = 0.7. Takes no configuration. No state, no memo. The same bits as
 * the bundled `mean` with `outer` "sgd" and `cooldown` 0, because both add up in the order of the contributions. */
#include "policy.h"

/* Values that one turn of the loop handles: eight registers of four. */
enum { LANES = 32 };
/* Contributions of a round, and sessions that are open at once: the host opens one in an instance. */
enum { ISLANDS_MAX = 1024, SESSIONS_MAX = 4 };
static const float ETA = 0.7f;

typedef struct { bool open; uint32_t count; float shares[ISLANDS_MAX]; } session_t;
static session_t sessions[SESSIONS_MAX];

static opened_t opened;
static opened_t *refuse(const char *reason) {
    opened = (opened_t){.wrong = 1, .reason = text_of(reason)};
    return &opened;
}

/* Nothing, or an object without fields. */
static bool is_empty(const uint8_t *config, uint32_t length) {
    uint32_t braces = 0;
    for (uint32_t i = 0; i < length; i++) {
        if (config[i] == (braces == 0 ? '{' : '}') && braces < 2) braces++;
        else if (config[i] != ' ' && config[i] != '\n' && config[i] != '\t' && config[i] != '\r') return false;
    }
    return braces != 1;
}

SESSION("static", "open")
opened_t *session_open(const uint8_t *config, uint32_t config_length, uint64_t index, uint32_t fragment, uint64_t version,
                       uint64_t tokens_merged, uint64_t token_budget, tensor_t *tensors, uint32_t tensor_count,
                       contribution_t *contributions, uint32_t count, uint8_t *memo, uint32_t memo_length) {
    if (!is_empty(config, config_length)) return refuse("this rule takes no configuration");
    if (count > ISLANDS_MAX) return refuse("this rule merges at most 1024 islands");
    session_t *session = sessions;
    while (session->open)
        if (++session == sessions + SESSIONS_MAX) return refuse("too many sessions at once");
    static double weights[ISLANDS_MAX];
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        double tokens = (double)contributions[i].tokens;
        weights[i] = contributions[i].steps ? tokens * (tokens / (double)contributions[i].steps) : 0;
        sum += weights[i];
    }
    if (!(sum > 0)) return refuse("no contribution has any weight");
    session->open = true;
    session->count = count;
    for (uint32_t i = 0; i < count; i++) session->shares[i] = (float)(weights[i] / sum);
    opened = (opened_t){.wrong = 0, .session = session_handle(session)};
    return &opened;
}
EMPTIES("static", "open", session_open_done)

EXPORT(ROLE "#[dtor]session") void session_drop(session_t *session) { session->open = false; }

SESSION("method", "plan") planned_t *session_plan(session_t *session) {
    static planned_t planned;
    planned = (planned_t){.wrong = 0, .weights = {session->shares, session->count}, .passes = 0, .state_slots = 0};
    return &planned;
}
EMPTIES("method", "plan", session_plan_done)

static bytes_t nothing;
static bytes_t *no_pass(void) {
    nothing = (bytes_t){.wrong = 1, .reason = text_of("this rule observes nothing")};
    return &nothing;
}

SESSION("method", "observe")
bytes_t *session_observe(session_t *session, uint32_t pass, uint32_t tensor, uint64_t offset, values_t *values, uint32_t count) {
    return no_pass();
}
EMPTIES("method", "observe", session_observe_done)

SESSION("method", "observed") bytes_t *session_observed(session_t *session, uint32_t pass, bytes_t *blobs, uint32_t count) {
    return no_pass();
}
EMPTIES("method", "observed", session_observed_done)

SESSION("method", "step")
stepped_t *session_step(session_t *session, uint32_t tensor, uint64_t offset, values_t *values, uint32_t count, values_t *state,
                        uint32_t slots, float *parameters, uint32_t length) {
    const float *shares = session->shares;
    uint32_t start = 0;
    for (; start + LANES <= length; start += LANES) {
        float delta[LANES] = {0};
        for (uint32_t m = 0; m < count; m++) {
            const float *from = values[m].values + start;
            for (int lane = 0; lane < LANES; lane++) delta[lane] += shares[m] * from[lane];
        }
        for (int lane = 0; lane < LANES; lane++) parameters[start + lane] -= ETA * delta[lane];
    }
    for (; start < length; start++) {
        float delta = 0;
        for (uint32_t m = 0; m < count; m++) delta += shares[m] * values[m].values[start];
        parameters[start] -= ETA * delta;
    }
    static stepped_t stepped;
    stepped = (stepped_t){.wrong = 0, .parameters = {parameters, length}, .state = {state, slots}};
    return &stepped;
}
EMPTIES("method", "step", session_step_done)

SESSION("method", "close") bytes_t *session_close(session_t *session) {
    nothing = (bytes_t){.wrong = 0, .bytes = NULL, .length = 0};
    return &nothing;
}
EMPTIES("method", "close", session_close_done)
