"""Elements of a report, each written as Markdown and as HTML."""
import dataclasses
import html
import re

import benchmark

STYLE = """body { font: 15px/1.5 sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd;
text-align: right } td:first-child, th:first-child { text-align: left } svg { max-width: 100%; height: auto }
code { background: #f4f4f4; padding: .1rem .3rem } ul.warnings { background: #fff4e0; padding: .6rem 2rem }"""


@dataclasses.dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2

    def markdown(self, out):
        return f"{'#' * self.level} {self.text}"

    def html(self, out):
        return f"<h{self.level}>{html.escape(self.text)}</h{self.level}>"


@dataclasses.dataclass(frozen=True)
class Line:
    text: str

    def markdown(self, out):
        return self.text

    def html(self, out):
        return re.sub("`(.+?)`", r"<code>\1</code>", f"<p>{html.escape(self.text)}</p>")


@dataclasses.dataclass(frozen=True)
class Warnings:
    texts: list

    def markdown(self, out):
        return "\n".join(f"- warning: {text}" for text in self.texts)

    def html(self, out):
        return f"<ul class=warnings>{''.join(f'<li>{html.escape(text)}</li>' for text in self.texts)}</ul>"


@dataclasses.dataclass(frozen=True)
class Table:
    head: list
    rows: list

    def markdown(self, out):
        return benchmark.table(self.head, self.rows)

    def html(self, out):
        def line(cells, tag):
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
        return f"<table>{line(self.head, 'th')}{''.join(line(row, 'td') for row in self.rows)}</table>"


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    caption: str

    def markdown(self, out):
        return f"![{self.name}]({self.name}.svg)\n\n{self.caption}"

    def html(self, out):
        drawn = (out / f"{self.name}.svg").read_text()
        return f"<figure>{drawn[drawn.index('<svg'):]}<figcaption>{html.escape(self.caption)}</figcaption></figure>"


def markdown(report, out):
    """`out`: the folder with the figures."""
    return "\n\n".join(block.markdown(out) for block in report) + "\n"


def page(report, out):
    """A self-contained page; the first element is a heading, and the title."""
    return (f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>{html.escape(report[0].text)}</title>\n"
            f"<style>{STYLE}</style>\n" + "\n".join(block.html(out) for block in report) + "\n</html>\n")
