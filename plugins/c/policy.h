/* The merge role of wit/policy.wit as C sees it, by the component model's canonical ABI: records as the host lays them out in memory,
 * lists as pointer and length, results with a tag before them. No libc, no imports.
 *
 * Memory. All that a call gets and answers lies in one arena, which grows from __heap_base and is emptied once the host has taken the answer
 * (EMPTIES). What must outlive a call lies in variables. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLE "tombolo:policy/merge@0.1.0"
#define EXPORT(name) __attribute__((export_name(name)))
/* A function of the role's resource `session`, static or a method. */
#define SESSION(kind, name) EXPORT(ROLE "#[" kind "]session." name)
/* What the host calls once it has taken the answer of such a function. */
#define EMPTIES(kind, name, function) \
    EXPORT("cabi_post_" ROLE "#[" kind "]session." name) void function(void *answer) { (void)answer; arena_empty(); }

typedef struct { const char *text; uint32_t length; } text_t;
typedef struct { float *values; uint32_t length; } values_t;
typedef struct { values_t *lists; uint32_t count; } lists_t;
typedef struct { text_t name; struct { uint32_t *sizes; uint32_t count; } shape; uint64_t elements; uint8_t kind; } tensor_t;
typedef struct { text_t island; uint64_t tokens; uint32_t steps, staleness; float norm; } contribution_t;
_Static_assert(sizeof(tensor_t) == 32 && sizeof(contribution_t) == 32, "as the canonical ABI lays them out");

/* Answers: `wrong` is 0 and the value follows, or 1 and the reason does. */
typedef struct { uint8_t wrong; union { int32_t session; text_t reason; }; } opened_t;
typedef struct { uint8_t wrong; union { struct { values_t weights; uint32_t passes, state_slots; }; text_t reason; }; } planned_t;
typedef struct { uint8_t wrong; union { struct { values_t parameters; lists_t state; }; text_t reason; }; } stepped_t;
typedef struct { uint8_t wrong; union { struct { uint8_t *bytes; uint32_t length; }; text_t reason; }; } bytes_t;

/* A handle by which the host names the session `of` from now on. */
__attribute__((import_module("[export]" ROLE), import_name("[resource-new]session"))) int32_t session_handle(void *of);

extern uint8_t __heap_base;
static uint8_t *arena_top = &__heap_base;

static void arena_empty(void) { arena_top = &__heap_base; }

/* Space of this size and alignment; traps where the host gives no more memory. */
static void *arena_take(size_t alignment, size_t size) {
    uintptr_t start = ((uintptr_t)arena_top + alignment - 1) & ~(uintptr_t)(alignment - 1);
    uintptr_t room = (uintptr_t)__builtin_wasm_memory_size(0) << 16;
    if (size > UINTPTR_MAX - start) __builtin_trap();
    if (start + size > room) {
        size_t pages = (start + size - room + 0xffff) >> 16;
        if (__builtin_wasm_memory_grow(0, pages) == SIZE_MAX) __builtin_trap();
    }
    arena_top = (uint8_t *)(start + size);
    return (void *)start;
}

/* Space for what the host hands over. It asks for more of a list only while it writes a text, which a copy serves. */
EXPORT("cabi_realloc") void *cabi_realloc(uint8_t *old, size_t old_size, size_t alignment, size_t size) {
    uint8_t *place = arena_take(alignment, size);
    for (size_t i = 0; i < old_size && i < size; i++) place[i] = old[i];
    return place;
}

static text_t text_of(const char *text) {
    uint32_t length = 0;
    while (text[length]) length++;
    return (text_t){text, length};
}
