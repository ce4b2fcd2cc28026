//! Bars and lines, the paper's values beside ours, as SVG.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::BenchError;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;
/// Height of the line that cites the paper.
const SOURCE_HEIGHT: u32 = 24;
/// The least value on a logarithmic axis.
const LEAST: f64 = 1e-3;
/// The share of a group of bars that stays empty.
const GAP: f64 = 0.2;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the paper.
    Paper,
    /// Measured in this run.
    Measured,
}

/// A named row of values.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// The source of its values.
    pub origin: Origin,
    /// The values as (x, y).
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Values of this run.
    pub fn measured(label: &str, points: Vec<(f64, f64)>) -> Series {
        Series { label: label.to_owned(), origin: Origin::Measured, points }
    }

    /// Values from the paper.
    pub fn paper(label: &str, points: Vec<(f64, f64)>) -> Series {
        Series { label: label.to_owned(), origin: Origin::Paper, points }
    }
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One group of bars for each x, one bar for each series.
    Bars,
    /// One line for each series.
    Lines,
    /// The same with logarithmic axes.
    LogLines(LogAxes),
}

impl Shape {
    fn scales(self) -> (Scale, Scale) {
        let (x, y) = (Scale::Log(2.0), Scale::Log(10.0));
        match self {
            Shape::LogLines(LogAxes::X) => (x, Scale::Linear),
            Shape::LogLines(LogAxes::Y) => (Scale::Linear, y),
            Shape::LogLines(LogAxes::Both) => (x, y),
            Shape::Bars | Shape::Lines => (Scale::Linear, Scale::Linear),
        }
    }
}

/// Which axes of a chart are logarithmic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAxes {
    /// The x axis, in powers of two.
    X,
    /// The y axis, in powers of ten.
    Y,
    /// Both.
    Both,
}

/// Maps values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    /// Logarithmic with this base. Values below [`LEAST`] are drawn there.
    Log(f64),
}

impl Scale {
    fn position(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log(base) => value.max(LEAST).log(base),
        }
    }

    /// The label of a tick at `position`: no more digits than a tick needs.
    fn label(self, position: f64) -> String {
        let value = match self {
            Scale::Linear => position,
            Scale::Log(base) => base.powf(position),
        };
        let digits = (value * 1e6).round() / 1e6;
        digits.to_string()
    }

    /// Ticks for this range: whole powers on a logarithmic axis.
    fn ticks(self, range: &std::ops::Range<f64>) -> usize {
        match self {
            Scale::Linear => 10,
            Scale::Log(_) => (range.end - range.start).ceil() as usize + 1,
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Its caption.
    pub title: String,
    /// The quantity on the x axis, with its unit.
    pub x: String,
    /// The quantity on the y axis, with its unit.
    pub y: String,
    /// How it is drawn.
    pub shape: Shape,
    /// The series to draw.
    pub series: Vec<Series>,
}

/// Draws `charts` one below the other into an SVG file, with the `source` of the paper's values below them.
///
/// # Errors
/// [`BenchError::Plot`] when there is nothing to draw, or the file cannot be written.
pub fn draw(charts: &[Chart], source: &str, path: &Path) -> Result<(), BenchError> {
    if charts.is_empty() {
        return Err(BenchError::Plot("this run has no figure to draw".to_owned()));
    }
    let mut svg = String::new();
    draw_svg(charts, source, &mut svg).map_err(|error| BenchError::Plot(error.to_string()))?;
    let io = |source| BenchError::Io { path: path.to_owned(), source };
    std::fs::write(path, svg).map_err(io)
}

fn draw_svg(
    charts: &[Chart],
    source: &str,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let height = HEIGHT * charts.len() as u32;
    let area = SVGBackend::with_string(svg, (WIDTH, height + SOURCE_HEIGHT));
    let whole = area.into_drawing_area();
    whole.fill(&WHITE)?;
    let (area, line) = whole.split_vertically(height);
    if !source.is_empty() {
        let text = format!("Paper: {source}");
        line.draw(&Text::new(text, (12, 6), ("sans-serif", 12).into_font()))?;
    }
    for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
        draw_chart(chart, part)?;
    }
    whole.present()?;
    Ok(())
}

fn draw_chart(
    chart: &Chart,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (across, up) = chart.shape.scales();
    let place = |(x, y): &(f64, f64)| (across.position(*x), up.position(*y));
    let places = || chart.series.iter().flat_map(|series| &series.points).map(place);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
    let x_min = least(&mut places().map(|place| place.0));
    let x_max = most(&mut places().map(|place| place.0));
    let y_max = most(&mut places().map(|place| place.1));
    if !x_min.is_finite() || !x_max.is_finite() {
        return Ok(());
    }
    let pad = if chart.shape == Shape::Bars { 0.5 } else { 0.0 };
    let x_range = x_min - pad..x_max + pad;
    let y_range = match up {
        Scale::Linear => 0.0..(y_max * 1.15).max(f64::MIN_POSITIVE),
        Scale::Log(_) => {
            let y_min = least(&mut places().map(|place| place.1)).floor();
            y_min..y_max.ceil().max(y_min + 1.0)
        }
    };
    let floor = y_range.start;
    let ticks = (across.ticks(&x_range), up.ticks(&y_range));
    let mut canvas = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(x_range, y_range)?;
    canvas
        .configure_mesh()
        .disable_x_mesh()
        .x_desc(&chart.x)
        .y_desc(&chart.y)
        .x_labels(ticks.0)
        .y_labels(ticks.1)
        .x_label_formatter(&|x| match chart.shape {
            // Groups of bars are at whole numbers.
            Shape::Bars if x.fract() != 0.0 => String::new(),
            _ => across.label(*x),
        })
        .y_label_formatter(&|y| up.label(*y))
        .draw()?;
    let width = (1.0 - GAP) / chart.series.len() as f64;
    for (nth, (series, colour)) in chart.series.iter().zip(colours(&chart.series)).enumerate() {
        let drawn = match chart.shape {
            Shape::Lines | Shape::LogLines(_)
                if series.origin == Origin::Paper && series.points.len() == 1 =>
            {
                canvas
                    .draw_series(series.points.iter().map(|at| Cross::new(place(at), 5, colour)))?
            }
            Shape::Lines | Shape::LogLines(_) => {
                canvas.draw_series(LineSeries::new(series.points.iter().map(place), colour))?
            }
            Shape::Bars => canvas.draw_series(series.points.iter().map(place).map(|(x, y)| {
                let left = x - 0.5 + GAP / 2.0 + width * nth as f64;
                Rectangle::new([(left, floor), (left + width, y)], colour.filled())
            }))?,
        };
        drawn
            .label(&series.label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    canvas.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}

/// A colour for each series, all different: shades of grey for the paper's, hues for measured ones.
fn colours(series: &[Series]) -> Vec<RGBColor> {
    let (mut paper, mut measured) = (0, 0);
    let mut next = |origin: Origin| {
        let (palette, nth): (&[RGBColor], &mut usize) = match origin {
            Origin::Paper => (&PAPER, &mut paper),
            Origin::Measured => (&MEASURED, &mut measured),
        };
        *nth += 1;
        palette[(*nth - 1) % palette.len()]
    };
    series.iter().map(|series| next(series.origin)).collect()
}

/// Shades for values of the paper.
const PAPER: [RGBColor; 4] =
    [RGBColor(160, 160, 160), RGBColor(90, 90, 90), RGBColor(205, 205, 205), RGBColor(0, 0, 0)];
/// Hues for measured values.
const MEASURED: [RGBColor; 12] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(188, 189, 34),
    RGBColor(0, 0, 128),
    RGBColor(0, 100, 0),
    RGBColor(255, 187, 120),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_and_label_is_in_the_svg() {
        let series = vec![
            Series::paper("paper", vec![(1.0, 2.0), (2.0, 3.0)]),
            Series::measured("here", vec![(1.0, 4.0), (2.0, 5.0)]),
        ];
        for shape in [Shape::Bars, Shape::Lines] {
            let chart = Chart {
                title: "A title".to_owned(),
                x: "x (s)".to_owned(),
                y: "y (MB/s)".to_owned(),
                shape,
                series: series.clone(),
            };
            let mut svg = String::new();
            draw_svg(&[chart], "A book", &mut svg).unwrap();
            let colours = ["#A0A0A0", "#1F77B4"];
            for text in ["A title", "x (s)", "y (MB/s)", "paper", "here", "Paper: A book"] {
                assert!(svg.contains(text), "{text}");
            }
            for text in colours {
                assert!(svg.contains(text), "{text}");
            }
        }
    }
    #[test]
    fn series_have_different_colours() {
        let series: Vec<Series> = (0..16)
            .map(|nth| match nth % 4 {
                0 => Series::paper("paper", Vec::new()),
                _ => Series::measured("here", Vec::new()),
            })
            .collect();
        let mut colours: Vec<_> =
            colours(&series).into_iter().map(|RGBColor(r, g, b)| (r, g, b)).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), series.len());
    }

    #[test]
    fn logarithmic_axes_have_ticks_at_powers() {
        let chart = Chart {
            title: "A title".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            shape: Shape::LogLines(LogAxes::Both),
            series: vec![Series::measured("here", vec![(1.0, 0.0), (128.0, 36_300.0)])],
        };
        let mut svg = String::new();
        draw_svg(&[chart], "", &mut svg).unwrap();
        let mut texts = svg.lines().map(str::trim);
        for tick in ["1", "2", "64", "128", "0.001", "0.01", "10000", "100000"] {
            assert!(texts.clone().any(|text| text == tick), "{tick}: {svg}");
        }
        assert!(!texts.any(|text| text == "3"), "a tick between powers of two");
        assert!(!svg.contains("Paper:"));
    }
}
