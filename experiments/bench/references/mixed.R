# CPU seconds of an lme4 fit, the first of a process and those after it:
#     Rscript mixed.R TABLE.csv 'lmer(y ~ x + (1 | site), rows)' REPEATS
suppressMessages(library(lme4))
given <- commandArgs(TRUE)
rows <- read.csv(given[1])
model <- NULL
fit <- parse(text = given[2])
taken <- sapply(seq_len(as.integer(given[3]) + 1), function(i) {
  seconds <- system.time(model <<- eval(fit))
  seconds[["user.self"]] + seconds[["sys.self"]]
})
peak <- sub("\\D*(\\d+).*", "\\1", grep("VmHWM", readLines("/proc/self/status"), value = TRUE))
cat(sprintf(
  '{"first": %.3f, "again": [%s], "log_likelihood": %.6f, "peak_mib": %.0f, "versions": "R %s, lme4 %s"}\n',
  taken[1], paste(sprintf("%.3f", taken[-1]), collapse = ", "), logLik(model), as.numeric(peak) / 1024,
  as.character(getRversion()), as.character(packageVersion("lme4"))
))
