//! The framing of an Arrow IPC file, read with every length checked.
//!
//! What lies in a bucket is input. Arrow's own reader trusts the lengths inside a record batch: one flipped bit, or an offer made for the
//! purpose, ends its process with a panic, and a syncer would meet the same offer again after every restart. Here the flatbuffers are verified
//! by Arrow's generated code, and everything behind them is read through slices that may be too short.
//!
//! Known is exactly what [`super::payload`] writes: little-endian, one row in each batch, no dictionaries, no compression, no nulls.

use super::payload::{Chunk, Data};
use arrow::ipc::{self, Block, Buffer, Endianness, Precision, Schema, Type};

/// What an Arrow IPC file begins and ends with.
const MAGIC: &[u8] = b"ARROW1";
/// What each message begins with, before its length.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// What is wrong with a file.
pub(super) type Checked<T> = Result<T, &'static str>;

const NO_FILE: &str = "expected an Arrow IPC file, found other or truncated bytes";
const NO_HEADER: &str = "expected a `tombolo` header in the schema's metadata, found none";
const NO_COLUMNS: &str = "expected the columns section, tensor, offset, elements and values or bytes, found others";
const NO_BATCH: &str = "expected record batches of one row without nulls, found one that is damaged or of another form";

/// The header and the chunks of an Arrow IPC file.
///
/// # Errors
/// It is none, is damaged, or is of another form.
pub(super) fn read(file: &[u8]) -> Checked<(String, Vec<Chunk>)> {
    let footer = footer(file).and_then(|bytes| ipc::root_as_footer(bytes).ok()).ok_or(NO_FILE)?;
    let schema = footer.schema().ok_or(NO_FILE)?;
    let header = header(&schema).ok_or(NO_HEADER)?.to_owned();
    let form = Form::of(&schema).ok_or(NO_COLUMNS)?;
    let blocks = footer.recordBatches().ok_or(NO_FILE)?;
    let chunks = blocks.iter().map(|block| chunk(file, block, form).ok_or(NO_BATCH)).collect::<Checked<_>>()?;
    Ok((header, chunks))
}

/// `ARROW1 … footer, its length as i32, ARROW1`.
fn footer(file: &[u8]) -> Option<&[u8]> {
    let (rest, length) = file.strip_prefix(MAGIC)?.strip_suffix(MAGIC)?.split_last_chunk::<4>()?;
    let length = usize::try_from(i32::from_le_bytes(*length)).ok()?;
    rest.get(rest.len().checked_sub(length)?..)
}

fn header<'a>(schema: &Schema<'a>) -> Option<&'a str> {
    schema.custom_metadata()?.iter().find(|pair| pair.key() == Some("tombolo"))?.value()
}

/// The last column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `values`: list of f32.
    Values,
    /// `bytes`: binary.
    Encoded,
}

impl Form {
    /// The form of a schema of ours; none if it is another.
    fn of(schema: &Schema<'_>) -> Option<Form> {
        let fields = schema.fields().filter(|fields| fields.len() == 5 && schema.endianness() == Endianness::Little)?;
        let is = |i: usize, name: &str, kind: Type| {
            let field = fields.get(i);
            field.name() == Some(name) && field.type_type() == kind && !field.nullable()
        };
        let is_unsigned = |i: usize, name: &str, bits: i32| {
            let int = fields.get(i).type_as_int();
            is(i, name, Type::Int) && int.is_some_and(|int| int.bitWidth() == bits && !int.is_signed())
        };
        let begins = is(0, "section", Type::Utf8)
            && is_unsigned(1, "tensor", 32)
            && is_unsigned(2, "offset", 64)
            && is_unsigned(3, "elements", 32);
        if !begins {
            return None;
        }
        if is(4, "bytes", Type::Binary) {
            return Some(Form::Encoded);
        }
        let items = fields.get(4).children().filter(|children| children.len() == 1)?;
        let is_f32 = items.get(0).type_as_floating_point().is_some_and(|f| f.precision() == Precision::SINGLE);
        (is(4, "values", Type::List) && is_f32).then_some(Form::Values)
    }
}

/// A part of `bytes`, if it lies inside.
fn part(bytes: &[u8], start: i64, length: i64) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(length).ok()?)
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk::<N>().copied()
}

/// The one row of a column with offsets: those of its first and its last value.
fn ends(offsets: &[u8]) -> Option<(i64, i64)> {
    let start = i32::from_le_bytes(array(offsets)?);
    let end = i32::from_le_bytes(array(offsets.get(4..)?)?);
    (start <= end).then_some((i64::from(start), i64::from(end)))
}

/// The chunk of one record batch: a message, its flatbuffer padded to eight bytes, and the body with the columns' buffers.
fn chunk(file: &[u8], block: &Block, form: Form) -> Option<Chunk> {
    let metadata = part(file, block.offset(), i64::from(block.metaDataLength()))?;
    let body = part(file, block.offset().checked_add(i64::from(block.metaDataLength()))?, block.bodyLength())?;
    let length = i32::from_le_bytes(array(metadata.strip_prefix(&CONTINUATION)?)?);
    let message = ipc::root_as_message(part(metadata, 8, i64::from(length))?).ok()?;
    let batch = message.header_as_record_batch()?;
    let (nodes, buffers) = (batch.nodes()?, batch.buffers()?);
    // A validity buffer for every column; offsets too for section and the last one; values.
    let (nodes_expected, buffers_expected) = match form {
        Form::Encoded => (5, 12),
        Form::Values => (6, 13),
    };
    let plain = batch.length() == 1
        && batch.compression().is_none()
        && nodes.len() == nodes_expected
        && buffers.len() == buffers_expected
        && nodes.iter().all(|node| node.null_count() == 0)
        && nodes.iter().take(5).all(|node| node.length() == 1);
    if !plain {
        return None;
    }
    let buffer = |i: usize| {
        let buffer: &Buffer = buffers.get(i);
        part(body, buffer.offset(), buffer.length())
    };
    let (start, end) = ends(buffer(1)?)?;
    let section = std::str::from_utf8(part(buffer(2)?, start, end - start)?).ok()?.to_owned();
    let tensor = u32::from_le_bytes(array(buffer(4)?)?);
    let offset = u64::from_le_bytes(array(buffer(6)?)?);
    let elements = u32::from_le_bytes(array(buffer(8)?)?);
    let (start, end) = ends(buffer(10)?)?;
    let data = match form {
        Form::Encoded => Data::Encoded(part(buffer(11)?, start, end - start)?.to_vec()),
        Form::Values => {
            let bytes = part(buffer(12)?, 4 * start, 4 * (end - start))?;
            let (values, _) = bytes.as_chunks::<4>();
            (end - start == i64::from(elements)).then_some(())?;
            Data::Values(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
    };
    Some(Chunk { section, tensor, offset, elements, data })
}
