//! The loss curves as an SVG picture.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::curves::{self, Bounds, Curves, finite, smoothed};
use super::{Error, Result, write_whole};

/// Width and height in dots.
const SIZE: (u32, u32) = (1000, 600);

/// Any viewer has one of its own; no font file is read.
const FONT: &str = "sans-serif";

/// The line that counts.
const INK: RGBColor = RGBColor(20, 30, 45);
/// Titles, labels and legend.
const TEXT: RGBColor = RGBColor(70, 78, 90);
/// Grid lines.
const GRID: RGBColor = RGBColor(228, 231, 236);

/// Colours of islands, told apart by people who do not see all colours too (Okabe and Ito 2008,
/// without its black and yellow).
const ISLAND: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
];

/// Writes the picture to `path`: held-out loss in bold with a mark at each point, each island's
/// training loss smoothed and thin.
///
/// # Errors
/// [`Error::Write`] if the file cannot be written, [`Error::Drawing`] if the picture cannot be
/// made.
pub fn loss_curves_svg(path: &Path, curves: &Curves) -> Result<()> {
    let mut picture = String::new();
    draw(&mut picture, curves).map_err(|problem| Error::Drawing { problem })?;
    write_whole(path, picture.as_bytes())
}

/// Draws the whole picture. Errors of the drawing library are texts here: it has one type of them
/// per backend and none to act on.
fn draw(picture: &mut String, curves: &Curves) -> std::result::Result<(), String> {
    let held_out = finite(&curves.held_out);
    let islands: Vec<Vec<(f64, f64)>> = curves.islands.iter().map(smoothed).collect();
    let bounds = curves::bounds(islands.iter().chain([&held_out]).map(Vec::as_slice));
    let (unit, unit_name) = curves::token_unit(bounds.tokens);
    let scale = |points: &[(f64, f64)]| points.iter().map(|(x, y)| (x / unit, *y)).collect::<Vec<_>>();
    let text = |size: u32| (FONT, size).into_font().color(&TEXT);

    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let title = (FONT, 22).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Top));
    area.draw_text(&curves.title, &title, (24, 18)).map_err(|error| error.to_string())?;

    let Bounds { tokens, low, high } = bounds;
    let mut chart = ChartBuilder::on(&area)
        .margin_top(60)
        .margin_left(16)
        .margin_right(28)
        .margin_bottom(12)
        .x_label_area_size(52)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..tokens / unit, low..high)
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT.mix(0.6))
        .x_labels(10)
        .y_labels(8)
        .x_desc(format!("tokens merged ({unit_name})"))
        .y_desc("loss (nats per byte)")
        .label_style(text(14))
        .axis_desc_style(text(15))
        .x_label_formatter(&|value| trimmed(*value))
        .y_label_formatter(&|value| trimmed(*value))
        .draw()
        .map_err(|error| error.to_string())?;

    // Beyond the colours there are, islands are one group: nobody tells twenty lines apart.
    let grouped = islands.len() > ISLAND.len();
    for (index, (line, series)) in islands.iter().zip(&curves.islands).enumerate() {
        let colour = if grouped { TEXT } else { ISLAND[index] };
        let style = colour.mix(if grouped { 0.35 } else { 0.75 }).stroke_width(1);
        let drawn = chart.draw_series(LineSeries::new(scale(line), style)).map_err(|error| error.to_string())?;
        let name = match (grouped, index) {
            (false, _) => series.name.clone(),
            (true, 0) => format!("{} islands, training", islands.len()),
            (true, _) => continue,
        };
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 26, y)], colour.stroke_width(2)));
    }
    let line = LineSeries::new(scale(&held_out), INK.stroke_width(3));
    chart
        .draw_series(line)
        .map_err(|error| error.to_string())?
        .label(curves.held_out.name.clone())
        .legend(|(x, y)| PathElement::new([(x, y), (x + 26, y)], INK.stroke_width(3)));
    // Marks where there is room for them.
    if held_out.len() <= 80 {
        let mark = |point: &(f64, f64)| Circle::new(*point, 4, INK.filled());
        chart.draw_series(scale(&held_out).iter().map(mark)).map_err(|error| error.to_string())?;
    }
    if let Some((x, y)) = held_out.last() {
        let end = (FONT, 15).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = Text::new(format!("{y:.3}"), (x / unit, y + (high - low) * 0.02), end);
        chart.draw_series([label]).map_err(|error| error.to_string())?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .legend_area_size(36)
        .margin(14)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(text(15))
        .draw()
        .map_err(|error| error.to_string())?;
    area.present().map_err(|error| error.to_string())
}

/// A label with as many decimals as it needs, at most three.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
