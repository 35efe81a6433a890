"""How much a page may show. What is beyond is thinned out or left out, and the page says so."""

MOST_POINTS = 4000  # of a curve; beyond these it is thinned out
MOST_SPANS = 4000  # of a row of the timeline
MOST_LANES = 6  # of calls that overlap
MOST_RANKS = 16  # of a run, as bars of memory and with their traces
MOST_SIDE_BY_SIDE = 5  # runs, as columns of the first table
SHORTEST_AVERAGE = 10  # steps; of `zero train`'s running average, too
