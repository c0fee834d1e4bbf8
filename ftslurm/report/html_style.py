"""The style sheet of the HTML report: light and dark, down to the width of a telephone."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--panel:#fff;--text:#1b1f24;--dim:#57606c;--line:#dde1e7;--code:#f3f4f7;
--link:#0b57b8;--red:#b42318;--red-bg:#fdeceb;--green:#12703f;--green-bg:#e3f5ea;--amber:#875200;--amber-bg:#fff2d9;
--blue:#1c5bb5;--blue-bg:#e7f0fd;--productive:#2f9e6e;--startup:#8fbdea;--lost:#e3902b;--lost-line:#b46a0f;
--detection:#cf3f33;--stopping:#d98880;--other:#cbb98a;--restart:#8b7bd8;--queue:#b4bbc5;--unknown:#dde1e7;--on:#fff}
@media (prefers-color-scheme:dark){:root{--bg:#121417;--panel:#1b1e23;--text:#e7e9ec;--dim:#a3acb8;--line:#30353d;
--code:#14171b;--link:#82b7ff;--red:#ff9d94;--red-bg:#3c1b19;--green:#7fdba9;--green-bg:#15301f;--amber:#f5c56b;
--amber-bg:#362a12;--blue:#9cc6ff;--blue-bg:#172a44;--productive:#37a877;--startup:#4c7eb0;--lost:#d98a2b;
--lost-line:#8a5310;--detection:#e0564a;--stopping:#9c4a42;--other:#8d8160;--restart:#8375cf;--queue:#59616c;--unknown:#30353d;--on:#fff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:20px 20px 48px}
header,section{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:16px 20px;
margin:0 0 14px}
header{border-top:5px solid var(--amber)}
header.failed{border-top-color:var(--red)}header.succeeded{border-top-color:var(--green)}
header.running{border-top-color:var(--blue)}
h1{font-size:1.5rem;line-height:1.3;margin:10px 0 8px;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:0 0 10px}
h3{font-size:.95rem;margin:18px 0 6px}
p{margin:4px 0;overflow-wrap:anywhere}
a{color:var(--link)}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.87em;
unicode-bidi:isolate}
code{overflow-wrap:anywhere}
pre{margin:6px 0;padding:10px 12px;background:var(--code);border:1px solid var(--line);border-radius:7px;
overflow:auto;max-height:36em;line-height:1.45;tab-size:4}
pre .dim,.dim{color:var(--dim)}
pre b{color:var(--red)}
.top{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;color:var(--dim)}
.top .id{font-weight:600;color:var(--text)}
.badge{display:inline-block;padding:2px 11px;border-radius:99px;font-weight:700;font-size:.82rem;letter-spacing:.04em;
background:var(--amber-bg);color:var(--amber)}
.failed .badge{background:var(--red-bg);color:var(--red)}
.succeeded .badge{background:var(--green-bg);color:var(--green)}
.running .badge{background:var(--blue-bg);color:var(--blue)}
.deeper{padding-left:1.4em;color:var(--dim)}
.hint{margin:12px 0 0;padding:9px 13px;border-left:4px solid var(--amber);background:var(--amber-bg);border-radius:5px}
.hint b{color:var(--amber)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:0 0 14px}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:10px 14px;min-width:0}
.tile b{display:block;font-size:1.3rem;line-height:1.3;overflow-wrap:anywhere}
.tile span{color:var(--dim);font-size:.86rem;display:block}
.wide{position:relative;overflow-x:auto;margin:6px 0}
.wide:focus-visible,a:focus-visible,summary:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);font-weight:400}
tbody th{font-weight:600;white-space:nowrap}
thead th{color:var(--dim);font-size:.84rem;white-space:nowrap;vertical-align:bottom}
tbody tr:last-child>*{border-bottom:0}
td.num,th.num{text-align:right}
td p{margin:0}
.nowrap{white-space:nowrap}
.text{min-width:20em;overflow-wrap:anywhere}
tr:target>*{background:var(--amber-bg)}
tr.suspect>*{background:var(--red-bg)}
tr.suspect>*:first-child{box-shadow:-8px 0 0 var(--red-bg)}
.tag{display:inline-block;padding:0 8px;border-radius:99px;background:var(--red);color:var(--panel);font-size:.76rem;
font-weight:700}
.strip{display:block;width:100%;overflow:visible}
.axis{display:flex;justify-content:space-between;gap:16px;color:var(--dim);font-size:.84rem;margin:3px 0 10px}
.mark{fill:var(--red)}
rect.productive{fill:var(--productive)}rect.startup{fill:var(--startup)}rect.lost{fill:url(#hatch)}
rect.detection{fill:var(--detection)}rect.stopping{fill:var(--stopping)}rect.other{fill:var(--other)}rect.restart{fill:var(--restart)}
rect.queue{fill:var(--queue)}rect.unknown{fill:var(--unknown)}
.hatch-a{fill:var(--lost)}.hatch-b{fill:var(--lost-line)}
.swatch{vertical-align:-2px;margin-right:7px}
.mini{display:block;width:100%;min-width:26px;max-width:80px;margin:3px auto 0;border-radius:2px}
.mini rect.lost{fill:var(--lost)}
.grid{border-collapse:separate;border-spacing:3px}
.grid th,.grid td{border:0;padding:2px 4px}
.grid thead th{text-align:center;min-width:38px}
.grid thead th:first-child{text-align:left}
.grid tbody th{position:sticky;left:0;background:var(--panel);padding-right:12px;max-width:15em;white-space:normal;
font-weight:400}
.grid tbody th code{display:block;max-height:14em;overflow:auto}
.grid td,.cell{text-align:center;border-radius:4px;background:var(--code);font-weight:700}
.cell{display:inline-block;width:1.7em;margin-right:3px}
.grid .first,.grid .lost,.cell.first,.cell.lost,.grid .hung,.cell.hung{background:#bd3328;color:#fff}
.grid .lost,.cell.lost{background:#5b3f8f}
.grid .hung,.cell.hung{background:#a34a00}
.grid .also,.cell.also,.grid .silent,.cell.silent{background:var(--amber-bg);color:var(--amber)}
.grid .follows,.cell.follows{background:var(--red-bg);color:var(--red)}
.grid .well,.cell.well{background:var(--green-bg);color:var(--green)}
.grid .ran,.cell.ran{background:var(--blue-bg);color:var(--blue)}
.grid .absent{background:none}
.key{margin:8px 0 0;padding:0;list-style:none;font-size:.9rem;display:flex;flex-wrap:wrap;gap:4px 20px}
.key b{font-weight:600}
.proofs{margin:0 0 10px;padding-left:20px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
details{margin:4px 0}
summary{cursor:pointer;overflow-wrap:anywhere}
.grid details{margin:0}.grid summary{white-space:nowrap}
.tree{margin:6px 0;padding:10px 12px;background:var(--code);border:1px solid var(--line);border-radius:7px;
overflow:auto;max-height:48em}
.tree .branch{margin:0 0 0 6px;padding:2px 0 2px 14px;border-left:2px solid var(--line)}
.tree>.branch{margin-left:0;padding-left:0;border:0}
.tree .ranks{font-weight:700}
.tree .mono{white-space:pre;line-height:1.5}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 16px;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--dim);font-size:.84rem;padding:0 4px}
@media (max-width:600px){main{padding:10px 10px 32px}header,section{padding:13px 13px}h1{font-size:1.2rem}
.tiles{grid-template-columns:1fr 1fr}.tile:last-child:nth-child(odd){grid-column:1/-1}
tbody th{white-space:normal}.text{min-width:17em}
.axis span{max-width:48%}dl{grid-template-columns:minmax(0,1fr)}dd{margin:0 0 6px}}
@media print{body{background:#fff}pre,.tree{max-height:none}section,header,.tile{break-inside:avoid}}
""".strip()

__all__ = ["CSS"]
