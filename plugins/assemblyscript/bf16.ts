// Codec in AssemblyScript: every value rounded to bfloat16, ties to even; 2 bytes a value, little-endian.
//
// The same bytes as the bundled `bf16`, by the same formula. Takes no configuration, no error feedback. Functions and records follow the component
// model's canonical ABI for wit/policy.wit; `rename.mjs` gives the exports the names that it asks for.
//
// Memory. All that a call gets and answers lies in one arena, which grows from __heap_base and is emptied once the host has taken the
// answer (the functions that end in `_done`). Nothing outlives a call.

// @ts-ignore: a decorator of AssemblyScript
@external("[export]tombolo:policy/codec@0.1.0", "[resource-new]session")
declare function session_handle(rep: i32): i32;

let top: usize = __heap_base;

function take(alignment: usize, size: usize): usize {
  const start = (top + alignment - 1) & ~(alignment - 1);
  const end = start + size;
  const room = <usize>memory.size() << 16;
  if (end < start) unreachable();
  if (end > room && memory.grow(<i32>((end - room + 0xffff) >> 16)) < 0) unreachable();
  top = end;
  return start;
}

export function cabi_realloc(old: usize, old_size: usize, alignment: usize, size: usize): usize {
  const place = take(alignment, size);
  memory.copy(place, old, min(old_size, size));
  return place;
}

// An answer that is a list: tag, pointer, length.
function list(pointer: usize, length: usize): usize {
  const answer = take(4, 12);
  store<u8>(answer, 0);
  store<u32>(answer, pointer, 4);
  store<u32>(answer, length, 8);
  return answer;
}

// An answer that says why there is none. Reasons are ASCII.
function refuse(reason: string): usize {
  const text = take(1, reason.length);
  for (let i = 0; i < reason.length; i++) store<u8>(text + i, reason.charCodeAt(i));
  const answer = list(text, reason.length);
  store<u8>(answer, 1);
  return answer;
}

// Nothing, or an object without fields.
function is_empty(config: usize, length: usize): bool {
  let braces = 0;
  for (let i: usize = 0; i < length; i++) {
    const byte = load<u8>(config + i);
    if (braces < 2 && byte == (braces == 0 ? 0x7b : 0x7d)) braces++;
    else if (byte != 0x20 && byte != 0x0a && byte != 0x09 && byte != 0x0d) return false;
  }
  return braces != 1;
}

export function open(config: usize, config_length: usize, tensors: usize, tensor_count: usize): usize {
  if (!is_empty(config, config_length)) return refuse("this codec takes no configuration");
  return list(session_handle(0), 0);
}

export function open_done(answer: usize): void { top = __heap_base; }

export function dropped(session: i32): void {}

// bits-per-value, feedback-decay (none), error-max, block.
export function traits(session: i32): usize {
  const answer = take(4, 20);
  store<f32>(answer, 16);
  store<u8>(answer, 0, 4);
  store<f32>(answer, 1.0 / 256.0, 12);
  store<u32>(answer, 1, 16);
  return answer;
}

// Four values as the lower halves of four words.
// @ts-ignore: a decorator of AssemblyScript
@inline
function round(from: usize): v128 {
  const bits = v128.load(from);
  const magnitude = v128.and(bits, i32x4.splat(0x7fffffff));
  const odd = v128.and(i32x4.shr_u(magnitude, 16), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(magnitude, i32x4.splat(0x7fff)), odd), 16);
  const sign = v128.and(i32x4.shr_u(bits, 16), i32x4.splat(0x8000));
  return v128.or(i32x4.min_u(rounded, i32x4.splat(0x7f7f)), sign);
}

export function encode(session: i32, tensor: u32, offset: u64, values: usize, count: usize): usize {
  // Whole blocks of eight: a short one is rounded in space of its own.
  const blocks = count & ~7;
  const bytes = take(16, (count + 8) * 2);
  for (let i: usize = 0; i < blocks; i += 8) {
    const from = values + (i << 2);
    v128.store(bytes + (i << 1), i16x8.narrow_i32x4_u(round(from), round(from + 16)));
  }
  if (blocks < count) {
    const rest = take(16, 32);
    memory.fill(rest, 0, 32);
    memory.copy(rest, values + (blocks << 2), (count - blocks) << 2);
    v128.store(bytes + (blocks << 1), i16x8.narrow_i32x4_u(round(rest), round(rest + 16)));
  }
  return list(bytes, count << 1);
}

export function encode_done(answer: usize): void { top = __heap_base; }

export function decode(session: i32, tensor: u32, offset: u64, bytes: usize, length: usize, elements: usize): usize {
  if (length != elements << 1) return refuse("a value takes two bytes, and these are not as many");
  const values = take(16, elements << 2);
  let i: usize = 0;
  for (; i + 8 <= elements; i += 8) {
    const from = bytes + (i << 1), to = values + (i << 2);
    v128.store(to, i32x4.shl(v128.load16x4_u(from), 16));
    v128.store(to, i32x4.shl(v128.load16x4_u(from, 8), 16), 16);
  }
  for (; i < elements; i++) store<u32>(values + (i << 2), <u32>load<u16>(bytes + (i << 1)) << 16);
  return list(values, elements);
}

export function decode_done(answer: usize): void { top = __heap_base; }
