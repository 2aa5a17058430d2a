//! The framing of an Arrow IPC file, read with every length checked.
//!
//! What lies in a bucket is input. Arrow's own reader trusts the lengths inside a record batch: one flipped bit, or an offer made for the
//! purpose, ends its process with a panic, and a syncer would meet the same offer again after every restart. Here the flatbuffers are verified
//! by Arrow's generated code, and everything behind them is read through slices that may be too short. The footer says where the record batches
//! lie; each is read by itself, so that a file need not be in memory.
//!
//! Known is exactly what [`super::payload`] writes: little-endian, no dictionaries, no compression, no nulls.

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
const OVERLAP: &str =
    "expected record batches one after another before the footer, found some that overlap or lie elsewhere";
const NO_BATCH: &str = "expected record batches without nulls, found one that is damaged or of another form";

/// Bytes at the end of a file that say how long its footer is.
pub(super) const TAIL_BYTES: usize = 4 + MAGIC.len();
/// The longest footer that is read: 24 bytes for each of two million chunks, and the header.
const FOOTER_BYTES_MAX: usize = 64 << 20;
/// The longest record batch that is read; those written are half as long, or hold one chunk.
const BATCH_BYTES_MAX: i64 = 1 << 20;

/// Where the footer of a file of `bytes` bytes lies, given its first bytes and its last [`TAIL_BYTES`]: `ARROW1 … footer, its length as i32,
/// ARROW1`.
///
/// # Errors
/// It is no such file, or its footer is too long.
pub(super) fn footer(bytes: u64, first: &[u8], last: &[u8]) -> Checked<(u64, usize)> {
    let length = last.strip_suffix(MAGIC).and_then(array::<4>).map(i32::from_le_bytes).ok_or(NO_FILE)?;
    let length = usize::try_from(length).ok().filter(|&length| length <= FOOTER_BYTES_MAX).ok_or(NO_FILE)?;
    let start = bytes.checked_sub((TAIL_BYTES + length) as u64).filter(|&start| start >= MAGIC.len() as u64);
    if first.starts_with(MAGIC) { start.map(|start| (start, length)).ok_or(NO_FILE) } else { Err(NO_FILE) }
}

/// The header of a file, and where its chunks lie.
#[derive(Debug)]
pub(super) struct Contents {
    /// What is stored under `tombolo` in the schema's metadata.
    pub header: String,
    form: Form,
    blocks: Vec<Block>,
}

impl Contents {
    /// Reads the footer that begins at byte `start` of its file.
    ///
    /// # Errors
    /// It is none, is damaged, or is of another form; a record batch is no place before it that no other one has, or too long. So whoever reads all batches reads no byte
    /// twice.
    pub fn read(footer: &[u8], start: u64) -> Checked<Contents> {
        let footer = ipc::root_as_footer(footer).map_err(|_| NO_FILE)?;
        let schema = footer.schema().ok_or(NO_FILE)?;
        let header = header(&schema).ok_or(NO_HEADER)?.to_owned();
        let form = Form::of(&schema).ok_or(NO_COLUMNS)?;
        let blocks = footer.recordBatches().ok_or(NO_FILE)?;
        let contents = Contents { header, form, blocks: blocks.iter().copied().collect() };
        let mut free = MAGIC.len() as u64;
        for batch in 0..contents.batches() {
            let (begin, length) = contents.place(batch)?;
            let end = begin.checked_add(length as u64).filter(|end| begin >= free && length > 0 && *end <= start);
            free = end.ok_or(OVERLAP)?;
        }
        Ok(contents)
    }

    /// Record batches in the file.
    pub fn batches(&self) -> usize {
        self.blocks.len()
    }

    /// Where a record batch lies: its first byte, its length.
    ///
    /// # Errors
    /// That is no place, or too long.
    pub fn place(&self, batch: usize) -> Checked<(u64, usize)> {
        let block = &self.blocks[batch];
        let length = i64::from(block.metaDataLength()).checked_add(block.bodyLength());
        let length = length.filter(|length| (0..=BATCH_BYTES_MAX).contains(length)).ok_or(NO_BATCH)?;
        Ok((u64::try_from(block.offset()).map_err(|_| NO_BATCH)?, length as usize))
    }

    /// The chunks in a record batch, one a row, of which `bytes` were read from its place.
    ///
    /// # Errors
    /// The batch is damaged or of another form.
    pub fn chunks(&self, batch: usize, bytes: &[u8]) -> Checked<Vec<Chunk>> {
        self::chunks(bytes, i64::from(self.blocks[batch].metaDataLength()), self.form).ok_or(NO_BATCH)
    }
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

/// A number of N bytes in row `row` of a column.
fn cell<const N: usize>(column: &[u8], row: usize) -> Option<[u8; N]> {
    array(column.get(N * row..)?)
}

/// Where row `row` of a column with offsets begins and ends.
fn ends(offsets: &[u8], row: usize) -> Option<(i64, i64)> {
    let (start, end) = (i32::from_le_bytes(cell(offsets, row)?), i32::from_le_bytes(cell(offsets, row + 1)?));
    (start <= end).then_some((i64::from(start), i64::from(end)))
}

/// The chunks of one record batch: a message, its flatbuffer padded to eight bytes, and the body with the columns' buffers. Rows share no bytes, so they take no
/// more memory than the batch.
fn chunks(batch: &[u8], metadata_bytes: i64, form: Form) -> Option<Vec<Chunk>> {
    let metadata = part(batch, 0, metadata_bytes)?;
    let body = batch.get(metadata.len()..)?;
    let length = i32::from_le_bytes(array(metadata.strip_prefix(&CONTINUATION)?)?);
    let message = ipc::root_as_message(part(metadata, 8, i64::from(length))?).ok()?;
    let batch = message.header_as_record_batch()?;
    let (nodes, buffers) = (batch.nodes()?, batch.buffers()?);
    // A validity buffer for every column; offsets too for section and the last one; values.
    let (nodes_expected, buffers_expected) = match form {
        Form::Encoded => (5, 12),
        Form::Values => (6, 13),
    };
    let rows = usize::try_from(batch.length()).ok().filter(|&rows| rows <= body.len())?;
    let plain = batch.compression().is_none()
        && nodes.len() == nodes_expected
        && buffers.len() == buffers_expected
        && nodes.iter().all(|node| node.null_count() == 0)
        && nodes.iter().take(5).all(|node| node.length() == batch.length());
    if !plain {
        return None;
    }
    let buffer = |i: usize| {
        let buffer: &Buffer = buffers.get(i);
        part(body, buffer.offset(), buffer.length())
    };
    let [names, texts] = [buffer(1)?, buffer(2)?];
    let [tensors, offsets, elements] = [buffer(4)?, buffer(6)?, buffer(8)?];
    let data_ends = buffer(10)?;
    let data = match form {
        Form::Encoded => buffer(11)?,
        Form::Values => buffer(12)?,
    };
    let row = |row: usize| {
        let (start, end) = ends(names, row)?;
        let section = std::str::from_utf8(part(texts, start, end - start)?).ok()?.to_owned();
        let elements = u32::from_le_bytes(cell(elements, row)?);
        let (start, end) = ends(data_ends, row)?;
        let data = match form {
            Form::Encoded => Data::Encoded(part(data, start, end - start)?.to_vec()),
            Form::Values => {
                let (values, _) = part(data, 4 * start, 4 * (end - start))?.as_chunks::<4>();
                (end - start == i64::from(elements)).then_some(())?;
                Data::Values(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
            }
        };
        let tensor = u32::from_le_bytes(cell(tensors, row)?);
        let offset = u64::from_le_bytes(cell(offsets, row)?);
        Some(Chunk { section, tensor, offset, elements, data })
    };
    (0..rows).map(row).collect()
}
